"""The lake and the cluster of the answers' tests serve the command line's too."""

from tests.answers.conftest import lake_path, shop

__all__ = ["lake_path", "shop"]
