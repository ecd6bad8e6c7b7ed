from lightning_perf.tune.levers.registry import LEVERS, find_lever, find_levers


def test_names_are_distinct_and_fit_the_table():
    names = [lever.name for lever in LEVERS]
    assert len(set(names)) == len(names)
    assert max(map(len, names)) <= 23


def test_names_and_families_find_levers_in_the_order_of_the_catalogue():
    found = [one.name for one in find_levers(["channels-last", "precision"])]
    assert found == ["bf16-mixed", "16-mixed", "channels-last"]
    assert find_levers([]) == LEVERS
    assert find_lever("compile").name == "compile"
