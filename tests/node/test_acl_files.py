"""ACL files on disk: what is damaged counts as damaged."""

from pathlib import Path

import pytest

from mqtrail.node.acl_files import AclFolder
from mqtrail.wire import InvalidParameter


@pytest.mark.parametrize("content", ["", " \n\n"])
def test_an_emptied_file_is_damaged(content: str, tmp_path: Path) -> None:
    """It is refused and named; else all accounts would be gone in silence. A comment alone is content."""
    folder = AclFolder(tmp_path)
    file = tmp_path / "conf" / "plain_acl.yml"
    assert folder.read() == {}
    file.parent.mkdir()
    file.write_text(content)
    with pytest.raises(InvalidParameter, match=r"plain_acl\.yml: found \d characters without content, .*restore it"):
        folder.read()
    file.write_text("# none yet\n")
    assert list(folder.read().values()) == ["# none yet\n"]
