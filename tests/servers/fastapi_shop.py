"""A FastAPI application as people write them: partial updates, uploads, forms, lists."""

from __future__ import annotations

import datetime
import enum
from typing import Annotated, Any

from fastapi import APIRouter, Body, FastAPI, File, Form, Header, Query, UploadFile
from pydantic import BaseModel, ConfigDict, Field


class Kind(enum.StrEnum):
    BOOK = "book"
    GAME = "game"


class Item(BaseModel):
    model_config = ConfigDict(extra="forbid")

    name: str
    active: bool = True
    qty: int = Field(default=1, ge=0)
    kind: Kind = Kind.BOOK
    note: str | None = None
    tags: list[str] = Field(default_factory=list)


class Change(BaseModel):
    name: str | None = None
    active: bool = True
    qty: int = 0
    note: str | None = "none"
    kind: Kind | None = None


def shop() -> FastAPI:
    """Return an application with one item, 7."""
    app = FastAPI(title="Shop")
    items: dict[int, dict[str, Any]] = {
        7: Item(name="old", active=False, qty=42, note="keep").model_dump()
    }
    router = APIRouter(prefix="/items")

    @router.get("/{item_id}", operation_id="get_item")
    def get_item(item_id: int) -> dict[str, Any]:
        return items[item_id]

    @router.patch("/{item_id}", operation_id="change_item")
    def change_item(item_id: int, change: Change) -> dict[str, Any]:
        items[item_id] |= change.model_dump(exclude_unset=True)
        return items[item_id]

    @router.put("/{item_id}", operation_id="put_item")
    def put_item(item_id: int, item: Item) -> dict[str, Any]:
        items[item_id] = item.model_dump()
        return items[item_id]

    @router.get("", operation_id="list_items")
    def list_items(
        tag: Annotated[list[str] | None, Query()] = None,
        limit: int = 10,
        since: datetime.date | None = None,
        kind: Kind | None = None,
        x_trace: Annotated[str | None, Header()] = None,
    ) -> dict[str, Any]:
        return {"tag": tag, "limit": limit, "since": str(since), "kind": kind, "trace": x_trace}

    app.include_router(router)

    @app.post("/upload", operation_id="upload")
    async def upload(
        file: UploadFile, title: Annotated[str, Form()], count: Annotated[int, Form()] = 1
    ) -> dict[str, Any]:
        data = await file.read()
        return {"hex": data.hex(), "title": title, "count": count}

    @app.post("/uploads", operation_id="uploads")
    async def uploads(
        files: list[UploadFile],
        cover: UploadFile | None = None,
        raw: Annotated[bytes | None, File()] = None,
        tags: Annotated[list[str] | None, Form()] = None,
    ) -> dict[str, Any]:
        return {
            "hex": [(await file.read()).hex() for file in files],
            "cover": None if cover is None else (await cover.read()).hex(),
            "raw": None if raw is None else raw.hex(),
            "tags": tags,
        }

    @app.post("/login", operation_id="login")
    def login(
        user: Annotated[str, Form()], scopes: Annotated[list[str], Form()], days: int = 1
    ) -> dict[str, Any]:
        return {"user": user, "scopes": scopes, "days": days}

    @app.post("/many", operation_id="many")
    def many(items: list[Item], loud: Annotated[bool, Body()] = False) -> dict[str, Any]:
        return {"names": [item.name for item in items], "loud": loud}

    return app
