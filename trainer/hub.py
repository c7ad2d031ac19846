"""What people are told when a model or a data set cannot be had from a hub. Torch-free."""

from __future__ import annotations

from trainer.errors import UserError

LONGEST = 200
"""Characters of the hub library's own words that are shown."""


def unavailable(section: str, field: str, name: str, revision: str | None, error: Exception) -> UserError:
    """One line that names the field, its value and the fix; `section` holds `field` and `revision`."""
    from huggingface_hub.errors import GatedRepoError, RepositoryNotFoundError, RevisionNotFoundError

    errors = [error, error.__cause__]
    said = " ".join(str(error).split())
    named = f"{section}.{field}={name}"
    # the datasets library tells the first and the third in words only
    if any(isinstance(each, GatedRepoError) for each in errors) or "is a gated dataset" in said:
        return UserError(
            f"{named} is gated: accept its terms on its page and set HF_TOKEN in the environment of this "
            "command"
        )
    if any(isinstance(each, RevisionNotFoundError) for each in errors):
        return UserError(
            f"{section}.revision={revision} is no commit of {name}: take one from the page of the "
            "repository's files and versions"
        )
    if (
        any(isinstance(each, RepositoryNotFoundError) for each in errors)
        or "doesn't exist on the Hub" in said
    ):
        return UserError(
            f"{named} is not on the hub, or is private: correct the name, or set HF_TOKEN in the environment "
            "of this command"
        )
    if not isinstance(error, OSError):
        return UserError(
            f"{named} at {revision} cannot be read ({short(error.__cause__ or error)}): choose another"
        )
    return UserError(
        f"{named} at {revision} is not in the cache and cannot be fetched ({short(error)}): run `grposweep "
        "prefetch` where there is a network"
    )


def short(error: BaseException) -> str:
    """The error's words on one line."""
    words = " ".join(str(error).split())
    return words if len(words) <= LONGEST else f"{words[:LONGEST]}…"
