import shutil

import numpy as np
import pytest

from lightning_perf.compare.records import fingerprint
from lightning_perf.compare.records.fingerprint import hash_files, hash_tensors


@pytest.fixture
def data(tmp_path):
    folder = tmp_path / "data"
    for name in ("a/1.png", "a/2.png", "b/1.png"):
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_bytes(name.encode() * 100)
    return folder


def files(folder):
    return [path for path in folder.rglob("*") if path.is_file()]


def test_the_same_data_elsewhere_and_in_any_order_hashes_the_same(data, tmp_path):
    other = tmp_path / "elsewhere"
    shutil.copytree(data, other)
    assert hash_files(files(data), data) == hash_files(reversed(files(other)), other)
    assert hash_files(files(data), data) == hash_files([*files(data), data / "a" / "1.png"], data)


def test_one_file_more_or_less_or_changed_or_renamed_changes_the_hash(data):
    seen = {hash_files(files(data), data)}
    (data / "a/2.png").write_bytes(b"A/2.png" * 100)  # of the same size
    seen.add(hash_files(files(data), data))
    (data / "a/2.png").rename(data / "b/2.png")
    seen.add(hash_files(files(data), data))
    (data / "b/2.png").unlink()
    seen.add(hash_files(files(data), data))
    (data / "b/3.png").touch()
    seen.add(hash_files(files(data), data))
    assert len(seen) == 5


def test_content_does_not_move_between_files_unseen(tmp_path):
    (tmp_path / "a").write_bytes(b"12")
    (tmp_path / "b").write_bytes(b"3")
    before = hash_files(files(tmp_path), tmp_path)
    (tmp_path / "a").write_bytes(b"1")
    (tmp_path / "b").write_bytes(b"23")
    assert hash_files(files(tmp_path), tmp_path) != before


def test_large_data_is_sampled_at_both_ends_and_says_so(data, monkeypatch):
    monkeypatch.setattr(fingerprint, "WHOLE_BYTES", 100)
    monkeypatch.setattr(fingerprint, "SAMPLE_BYTES", 16)
    before = hash_files(files(data), data)
    assert before.endswith("-sampled")
    content = (data / "a/1.png").read_bytes()
    for changed in (b"x" + content[1:], content[:-1] + b"x", content + b"x"):
        (data / "a/1.png").write_bytes(changed)
        assert hash_files(files(data), data) != before


def test_a_file_that_is_not_there_is_an_error(tmp_path):
    with pytest.raises(OSError, match=r"gone\.png"):
        hash_files([tmp_path / "gone.png"], tmp_path)


def test_a_batch_hashes_by_values_names_shapes_and_types():
    batch = {"x": np.arange(6.0).reshape(2, 3), "y": (np.array([1, 2]), "name", 3)}
    same = {"x": np.arange(6.0).reshape(2, 3), "y": [np.array([1, 2]), "name", 3]}
    different = [
        batch | {"x": np.arange(6.0).reshape(3, 2)},
        batch | {"x": np.arange(6, dtype=np.float32).reshape(2, 3)},
        batch | {"y": (np.array([2, 1]), "name", 3)},
        batch | {"y": (np.array([1, 2]), "other", 3)},
        {"z": batch["x"], "y": batch["y"]},
    ]
    assert hash_tensors(batch) == hash_tensors(same)
    assert len({hash_tensors(value) for value in [batch, *different]}) == 6


def test_an_array_hashes_by_its_content_and_not_by_its_memory_layout():
    array = np.arange(12).reshape(3, 4)
    assert hash_tensors(array) == hash_tensors(np.asfortranarray(array)) == hash_tensors(array.copy())


def test_without_arrays_there_is_nothing_to_hash():
    assert hash_tensors({"a": 1, "b": ["c", None]}) is None
    assert hash_tensors([]) is None


def test_tensors_of_every_kind(tmp_path):
    torch = pytest.importorskip("torch")
    values = torch.tensor([[1.0, 2.0], [3.0, 4.0]])
    assert hash_tensors([values]) == hash_tensors([values.clone().requires_grad_()]) == hash_tensors([values.T.T])
    assert hash_tensors([values]) != hash_tensors([values.T])
    kinds = [values.bfloat16(), values.half(), values.bool(), values.long(), torch.tensor(1.0), torch.zeros(0, 3)]
    hashes = {hash_tensors(kind) for kind in kinds}
    assert len(hashes) == len(kinds)
    assert None not in hashes


@pytest.mark.filterwarnings("ignore:Sparse CSR tensor support is in beta")
def test_tensors_that_are_no_plain_block_of_numbers():
    torch = pytest.importorskip("torch")
    dense = torch.tensor([[1.0, 0.0, 0.0, 2.0], [0.0, 3.0, 0.0, 0.0]])
    twice = torch.sparse_coo_tensor([[0, 0], [1, 1]], [1.0, 2.0], (2, 2))
    assert hash_tensors(twice) == hash_tensors(twice.coalesce())
    kinds = {
        "coo": lambda values: values.to_sparse(),
        "csr": lambda values: values.to_sparse_csr(),
        "csc": lambda values: values.to_sparse_csc(),
        "bsr": lambda values: values.to_sparse_bsr((1, 2)),
        "bsc": lambda values: values.to_sparse_bsc((1, 2)),
        "conjugate": lambda values: (values + 1j).conj(),
        "nested": lambda values: torch.nested.nested_tensor([values[0], values[1, :2]], layout=torch.jagged),
    }
    hashes = {hash_tensors(kind(dense)) for kind in kinds.values()}
    assert len(hashes) == len(kinds)
    for name, kind in kinds.items():
        assert hash_tensors(kind(dense)) == hash_tensors(kind(dense.clone())) != hash_tensors(kind(2 * dense)), name


def test_arrays_of_objects_hash_by_what_they_hold_and_not_by_addresses():
    def column(*texts):
        return np.array(["".join(list(text)) for text in texts], dtype=object)  # each a string of its own

    assert hash_tensors(column("one text", "two")) == hash_tensors(column("one text", "two"))
    assert hash_tensors(column("one text", "two")) != hash_tensors(column("one text", "2"))
    assert hash_tensors(column("a", "b").reshape(1, 2)) != hash_tensors(column("a", "b"))
    ragged = np.array([np.ones(2), np.ones(3)], dtype=object)
    assert hash_tensors(ragged) == hash_tensors(np.array([np.ones(2), np.ones(3)], dtype=object))
    assert hash_tensors(ragged) != hash_tensors(np.array([np.ones(2), np.zeros(3)], dtype=object))


def test_a_batch_that_leads_back_to_itself():
    batch = {"x": np.ones(2)}
    alone = hash_tensors(batch)
    batch["parent"] = {"child": batch}
    assert hash_tensors(batch) == alone


def test_large_tensors_are_sampled_and_say_so(monkeypatch):
    torch = pytest.importorskip("torch")
    monkeypatch.setattr(fingerprint, "WHOLE_BYTES", 100)
    for large in (torch.arange(1000), np.arange(1000)):
        assert hash_tensors(large).endswith("-sampled")
        assert hash_tensors(large) != hash_tensors(large + 1)
