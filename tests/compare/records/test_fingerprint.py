import os
import shutil
import tracemalloc
from collections.abc import Sequence

import numpy as np
import pytest

from lightning_perf.compare.records import content, fingerprint
from lightning_perf.compare.records.fingerprint import fact_of_hash, hash_files, hash_tensors


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
    monkeypatch.setattr(fingerprint, "FILE_BYTES", 16)
    before = hash_files(files(data), data)
    assert before.endswith("-sampled-2")
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


def test_large_tensors_are_sampled_and_say_so(monkeypatch):
    torch = pytest.importorskip("torch")
    monkeypatch.setattr(fingerprint, "WHOLE_BYTES", 100)
    for large in (torch.arange(1000), np.arange(1000)):
        assert hash_tensors(large).endswith("-sampled-2")
        assert hash_tensors(large) != hash_tensors(large + 1)
        assert hash_tensors([large[:3]]) == hash_tensors([large[:3] + 0])
        assert hash_tensors([large, large[:3]]) != hash_tensors([large, large[:3] + 1]), "small parts are read whole"


def test_hashes_of_ordinary_content_are_those_of_earlier_versions():
    torch = pytest.importorskip("torch")
    batch = {"image": torch.arange(24.0).reshape(2, 3, 4), "y": (np.arange(3), "name", 3, None, [1.5, b"x", True])}
    assert hash_tensors(batch) == "4f237fdd1661ef5e"
    assert (
        hash_tensors([np.arange(6.0).reshape(2, 3).T, torch.ones(2, 1, dtype=torch.bfloat16).expand(2, 5)])
        == "1627f80fb2884c2a"
    )


class Node:
    pass


def ring(count):
    nodes = [Node() for _ in range(count)]
    for number, node in enumerate(nodes):
        node.value, node.before, node.after = np.array(number), nodes[number - 1], nodes[(number + 1) % count]
    return nodes


def graph(count):
    nodes = [Node() for _ in range(count)]
    for number, node in enumerate(nodes):
        node.value, node.neighbors = np.array(number), [other for other in nodes if other is not node]
    return nodes


@pytest.mark.parametrize(("make", "count"), [(ring, 200), (graph, 36)])
def test_objects_that_lead_to_each_other_are_read_once(make, count):
    nodes = make(count)
    before = hash_tensors(nodes)
    assert before == hash_tensors(make(count)), "the same in a process with other addresses"
    nodes[count // 2].value += 1
    assert hash_tensors(nodes) != before


def test_a_batch_that_leads_back_to_itself_differs_from_one_that_does_not():
    def batch(inner):
        whole = {"x": np.ones(2)}
        whole["inner"] = inner if inner is not None else whole
        return whole

    assert hash_tensors(batch(None)) == hash_tensors(batch(None)) != hash_tensors(batch({"x": np.ones(2)}))


@pytest.mark.parametrize(
    ("make", "reason"),
    [
        (lambda: [list(range(10**6)), np.ones(1)], "it has more than 20,000 objects"),
        (lambda: [np.ones(1)] * 5000, "it has more than 4,000 tensors"),
        (lambda: ["x" * 2**24, np.ones(1)], "it has more than 8 MiB of text"),
        (lambda: {"x" * 2**20: [np.ones(1)] * 100}, "it has more than 8 MiB of text"),
        (lambda: np.empty(1, "V3000000"), "it has elements of more than 1 MiB"),
    ],
)
def test_what_exceeds_a_limit_is_not_hashed_and_says_why(make, reason):
    assert fact_of_hash(lambda: hash_tensors(make())) == f"not hashed, because {reason}"


def test_the_last_resort_is_time(monkeypatch):
    monkeypatch.setattr(fingerprint, "CPU_LIMIT_S", -1.0)
    assert fact_of_hash(lambda: hash_tensors(np.ones(4))).startswith("not hashed, because reading it takes longer than")


class Augmenting(Sequence):
    """A batch that augments its samples when they are read."""

    def __init__(self, samples):
        self.samples = samples

    def __len__(self):
        raise AssertionError("asked for its length")

    def __getitem__(self, index):
        raise AssertionError("read")


class Guarded:
    """Every look from outside is an error."""

    def __init__(self):
        object.__setattr__(self, "content", np.arange(3))

    def __getattribute__(self, name):
        raise AssertionError(f"touched: {name}")

    __len__ = __iter__ = __bool__ = __getattribute__


class Computing:
    def __init__(self):
        self.stored = np.ones(2)

    @property
    def shape(self):
        raise AssertionError("a property was read")

    @property
    def __dict__(self):
        raise AssertionError("a property was read")


def draws(iterator):
    while True:
        raise AssertionError("an iterator was read")
        yield iterator


@pytest.mark.parametrize("make", [lambda: Augmenting([np.ones(2)]), Guarded, Computing, lambda: draws(1)])
def test_code_of_unknown_classes_does_not_run(make):
    assert hash_tensors({"odd": make(), "x": np.ones(2)}) == hash_tensors({"odd": make(), "x": np.ones(2)})


def test_stored_content_of_unknown_classes_counts():
    assert hash_tensors(Augmenting([np.ones(2)])) != hash_tensors(Augmenting([np.zeros(2)]))


class Labeled:
    """A tensor that carries labels and fails without them, as that of a package for physics-informed networks."""

    @staticmethod
    def make(torch):
        class LabelTensor(torch.Tensor):
            @classmethod
            def __torch_function__(cls, func, types, args=(), kwargs=None):
                raise AssertionError(f"called {func}")

            def __getitem__(self, index):
                raise AssertionError("indexed")

        return torch.arange(6.0).reshape(3, 2).as_subclass(LabelTensor)


def test_tensor_subclasses_hash_as_tensors():
    torch = pytest.importorskip("torch")
    assert hash_tensors([Labeled.make(torch)]) == hash_tensors([torch.arange(6.0).reshape(3, 2)])


@pytest.mark.filterwarnings("ignore:.*torch.ao.quantization is deprecated", "ignore:.*quantize_per")
def test_quantized_and_meta_tensors():
    torch = pytest.importorskip("torch")
    values = torch.tensor([[1.0, 2.0], [3.0, 4.0]])
    scales, zeros = torch.tensor([0.1, 0.2]), torch.zeros(2)
    kinds = [
        torch.quantize_per_tensor(values, 0.1, 3, torch.qint8),
        torch.quantize_per_tensor(values, 0.2, 3, torch.qint8),
        torch.quantize_per_tensor(values, 0.1, 3, torch.qint8).T,
        torch.quantize_per_channel(values, scales, zeros, 0, torch.qint8),
        torch.empty(2, 2, device="meta"),
        torch.empty(2, 3, device="meta"),
    ]
    assert len({hash_tensors(kind) for kind in kinds}) == len(kinds)


def peak_bytes(call):
    tracemalloc.start()
    try:
        call()
        return tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()


@pytest.mark.parametrize("layout", ["stride-0", "transposed", "memory-mapped", "column"])
def test_no_layout_is_copied_as_a_whole(layout, tmp_path):
    rows = 2**15
    if layout == "stride-0":
        array = np.broadcast_to(np.float32(1), (3 * 2**28,))
    else:
        (tmp_path / "data").touch()
        os.truncate(tmp_path / "data", 4 * 2**14 * rows)  # 2 GiB without a block on the disk
        whole = np.memmap(tmp_path / "data", np.float32, "r", shape=(rows, 2**14))
        array = {"memory-mapped": whole, "transposed": whole.T, "column": whole[:, 5]}[layout]
    found = []
    assert peak_bytes(lambda: found.append(hash_tensors([array]))) < 2**22
    assert found[0].endswith("-sampled-2" if layout == "memory-mapped" else "-sampled-spread-2")


def test_the_sample_of_a_large_array_does_not_depend_on_its_layout(monkeypatch):
    torch = pytest.importorskip("torch")
    monkeypatch.setattr(fingerprint, "WHOLE_BYTES", 2**12)
    array = np.random.default_rng(0).random((200, 100))
    assert hash_tensors(array) == hash_tensors(np.asfortranarray(array)) != hash_tensors(array.T)
    image = torch.from_numpy(array.reshape(2, 10, 10, 100))
    assert hash_tensors(image) == hash_tensors(image.to(memory_format=torch.channels_last))
    assert hash_tensors(np.broadcast_to(array[:1], array.shape)) == hash_tensors(np.repeat(array[:1], 200, axis=0))


def test_large_content_is_read_in_pieces_with_the_hash_of_the_whole(monkeypatch):
    torch = pytest.importorskip("torch")
    array = np.arange(3 * 70 * 1000, dtype=np.int32).reshape(3, 70, 1000)
    conjugate = torch.complex(torch.from_numpy(array).float(), torch.ones(3, 70, 1000)).conj()
    whole = [hash_tensors([array.T, each]) for each in (conjugate, conjugate.imag)]
    monkeypatch.setattr(content, "PIECE_BYTES", 2**10)
    assert [hash_tensors([array.T, each]) for each in (conjugate, conjugate.imag)] == whole
