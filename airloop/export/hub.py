"""An export on the hub: pushed after its check has passed; whatever fails there, the export here stays."""

from __future__ import annotations

import re
from pathlib import Path

from airloop.errors import AirError
from airloop.text.keys import note_keys, without_keys

_REPOSITORY = re.compile(r"[A-Za-z0-9][\w.-]*/[A-Za-z0-9][\w.-]*")
LOGIN = "set HF_TOKEN to a token that may write, or run `hf auth login`"


def check_ready(name: str) -> None:
    """Before minutes of work: the name has the form of a repository's, and there is a token."""
    from huggingface_hub import get_token

    from airloop.models.sources import hub_offline

    if not _REPOSITORY.fullmatch(name):
        raise AirError(f"--push {name}: this is not the name of a repository.", "write it as OWNER/NAME.")
    if hub_offline():
        raise AirError("--push needs the hub, and HF_HUB_OFFLINE forbids it.", "unset HF_HUB_OFFLINE.")
    note_keys(token := get_token())
    if not token:
        raise AirError("--push needs a token of the hub, and there is none here.", f"{LOGIN}.")


def check_base(base: str) -> None:
    if Path(base).is_absolute() or base.startswith("tiny:"):
        raise AirError(
            f"The adapter belongs on {base}, which nobody else has: pushed, it could not be loaded.",
            "push the whole model: --merged or --gguf.",
        )


def push(directory: Path, name: str, private: bool) -> str:
    """The address of the commit. A repository that is there gets a new commit, and stays as private as it is."""
    from huggingface_hub import HfApi
    from huggingface_hub.errors import HfHubHTTPError
    from huggingface_hub.utils import disable_progress_bars, enable_progress_bars

    api = HfApi()
    here = f"The export is whole in {directory}"
    disable_progress_bars()
    try:
        api.create_repo(name, private=private or None, exist_ok=True)
        if private and not api.repo_info(name).private:
            raise AirError(
                f"{name} is there already and public, and --private was asked for. {here}.",
                "make it private on the hub, push to another name, or leave --private out.",
            )
        said = f"air export: {directory.name}"
        made = api.upload_folder(repo_id=name, folder_path=directory, commit_message=said)
    except HfHubHTTPError as error:
        refused = f"{_refusal(error, name, api.endpoint)} {here}."
        raise AirError(refused, f"{LOGIN}; then `hf upload {name} {directory}`.") from None
    except AirError:
        raise
    except Exception as error:  # the client's versions use different libraries, each with errors of its own
        said = without_keys(str(error).splitlines()[0] if str(error) else type(error).__name__)
        raise AirError(
            f"The hub {api.endpoint} was lost while {name} was pushed: {said}. {here}.",
            f"when it can be reached: `hf upload {name} {directory}`; what it has already is not sent twice.",
        ) from None
    finally:
        enable_progress_bars()
    return str(made.commit_url)


def _refusal(error: object, name: str, endpoint: str) -> str:
    """By the number of the hub's answer; its own words may name the account."""
    response = getattr(error, "response", None)
    status = response.status_code if response is not None else 0
    why = {
        401: "does not take the token: it is wrong, or was revoked",
        403: f"does not let this token write to {name}: it is another's, or the token may only read",
        404: f"has no {name}, or does not show it to this token",
        409: f"has another {name}",
    }.get(status, f"answered {status}")
    return f"The hub {endpoint} {why}."
