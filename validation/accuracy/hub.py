"""Files of published datasets, at one revision, from the hub or from whatever HF_ENDPOINT names."""

import os
import re
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path

from ..errors import UserError

_COMMIT = re.compile(r"[0-9a-f]{40}")


def fetch(
    repository: str, revision: str, names: Sequence[str], environment: Mapping[str, str] = os.environ
) -> tuple[str, dict[str, bytes]]:
    """The commit that `revision` names, and the files `names` of the dataset `repository` at it.

    A token for gated data is taken from $HF_TOKEN and appears in no message. Raises UserError: not reachable, no such
    repository, revision or file, or not allowed.
    """
    try:
        from huggingface_hub import HfApi
        from huggingface_hub.errors import GatedRepoError, HfHubHTTPError
    except ImportError:
        raise UserError("the package huggingface-hub is not installed", "pip install 'fasttrack[exams]'") from None
    endpoint, token = environment.get("HF_ENDPOINT") or "https://huggingface.co", environment.get("HF_TOKEN")
    api = HfApi(endpoint=endpoint, token=token or False)
    try:
        commit = revision
        if not _COMMIT.fullmatch(revision):
            commit = str(api.dataset_info(repository, revision=revision).sha)
        found = {}
        with tempfile.TemporaryDirectory() as place:
            for name in names:
                path = api.hf_hub_download(
                    repository, name, repo_type="dataset", revision=commit, local_dir=place
                )
                found[name] = Path(path).read_bytes()
        return commit, found
    except GatedRepoError:
        raise UserError(
            f"{repository} is gated", "accept its terms on the hub, then set HF_TOKEN to a token that may read it"
        ) from None
    except HfHubHTTPError as error:
        status = error.response.status_code if error.response is not None else "no status"
        how = "set HF_TOKEN to a token that may read it" if status in (401, 403) else "check --revision and HF_ENDPOINT"
        raise UserError(f"{repository} at {revision}: the hub answers {status}", how) from None
    except Exception as error:  # whatever the client's transport raises: which one it is depends on its version
        what = str(error).splitlines()[0] if str(error) else type(error).__name__
        raise UserError(
            f"{repository} cannot be fetched from {endpoint}: {what}", "check the network, HF_ENDPOINT and free space"
        ) from error
