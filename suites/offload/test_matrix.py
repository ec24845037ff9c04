"""Every cell of the matrix, the null cases and the planted fault included."""


def test_cell(planned_case, check_case):
    check_case(planned_case)
