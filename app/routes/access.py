"""Whose request it is. What is not theirs, routes must not find."""

from typing import Annotated

from fastapi import Depends, Request

from app.conversation import DEFAULT_USER


def current_user(request: Request) -> str:
    """The user whose request it is: the owner of the conversations and documents that it may see."""
    return DEFAULT_USER


CurrentUser = Annotated[str, Depends(current_user)]
