import pytest
from benchmarks.against import main


def test_rows_that_no_one_knows_are_named_with_those_that_exist(
    capsys: pytest.CaptureFixture[str],
) -> None:
    with pytest.raises(SystemExit):
        main(["HEAD", "--rows", "stdio,frnot"])
    said = capsys.readouterr().err
    assert "no row is called frnot; there are" in said
    assert "mcp_front" in said
