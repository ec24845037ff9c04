"""`harness show`: one cell in full."""


def test_a_cell_shows_verdict_proofs_and_command(cli, recorded, cells):
    answer = cli("show", cells[3], "--run", recorded.session)

    assert (0, "") == (answer.code, answer.err)
    for word in (
        "PASS",
        "took effect",
        "right place",
        "memory saved",
        "same output",
        f"--cell {cells[3]}",
    ):
        assert word in answer.out


def test_a_part_that_only_one_cell_has_is_enough(cli, recorded, cells):
    answer = cli("show", "v1-prefetch", "--run", recorded.session, "--json")

    assert "PASS" == answer.json["verdict"]
    assert cells[2].endswith(answer.json["case"]["case_id"].split("..")[1])


def test_an_ambiguous_part_lists_what_it_could_be(cli, recorded, cells):
    answer = cli("show", "v2-", "--run", recorded.session)

    assert 2 == answer.code
    assert "matches" in answer.err
    assert 1 == len(answer.err.splitlines())


def test_the_planted_fault_can_be_shown(cli, recorded):
    answer = cli("show", "control-", "--run", recorded.session)

    assert 0 == answer.code
    assert "host-copy-damaged" in answer.out
