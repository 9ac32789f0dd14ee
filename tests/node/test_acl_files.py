"""ACL files on disk: a damaged file is an error."""

from pathlib import Path

import pytest

from mqtrail.node.acl_files import AclFolder
from mqtrail.wire import InvalidParameter


@pytest.mark.parametrize("content", ["", " \n\n"])
def test_an_emptied_file_is_damaged(content: str, tmp_path: Path) -> None:
    """A file without content is refused and named; otherwise all accounts would disappear silently.

    A comment is content.
    """
    folder = AclFolder(tmp_path)
    file = tmp_path / "conf" / "plain_acl.yml"
    assert folder.read() == {}
    file.parent.mkdir()
    file.write_text(content)
    with pytest.raises(InvalidParameter, match=r"plain_acl\.yml: found \d characters without content, .*restore it"):
        folder.read()
    file.write_text("# none yet\n")
    assert list(folder.read().values()) == ["# none yet\n"]
