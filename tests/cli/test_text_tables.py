"""Tables keep to the width of a terminal without breaking a name or a figure."""

from loadmanager.cli.text_tables import fitted, plain_lines

COLUMNS = ("bundle", "msg/s>", "because")
ROWS = [("t/ns/0x00000000_0x20000000", "1,500", "Its broker carried more than is allowed.")]


def test_a_table_that_fits_has_one_line_a_row() -> None:
    whole = [
        "bundle                      msg/s  because",
        "t/ns/0x00000000_0x20000000  1,500  Its broker carried more than is allowed.",
    ]
    assert plain_lines(COLUMNS, ROWS) == whole
    assert plain_lines(COLUMNS, ROWS, 80) == whole


def test_a_text_is_wrapped_beside_the_columns_before_it() -> None:
    assert plain_lines(COLUMNS, ROWS, 60) == [
        "bundle                      msg/s  because",
        "t/ns/0x00000000_0x20000000  1,500  Its broker carried more",
        "                                   than is allowed.",
    ]


def test_columns_that_do_not_fit_follow_below_with_their_names() -> None:
    assert plain_lines(COLUMNS, ROWS, 40) == [
        "bundle                      msg/s",
        "t/ns/0x00000000_0x20000000  1,500",
        "    because: Its broker carried more",
        "      than is allowed.",
    ]
    figures = plain_lines(("a>", "b>"), [("1234567", "23456")], 13)
    assert figures == ["      a", "1234567", "    b: 23456"]


def test_a_first_column_that_does_not_fit_is_kept_whole() -> None:
    assert plain_lines(COLUMNS, ROWS, 20)[:2] == ["bundle", "t/ns/0x00000000_0x20000000"]


def test_a_long_line_is_wrapped_between_words_and_keeps_its_indent() -> None:
    line = "  Numbers: margin 0.02, failure_domains true"
    assert fitted(line, None) == fitted(line, 80) == line
    assert fitted(line, 24) == "  Numbers: margin 0.02,\n    failure_domains true"
