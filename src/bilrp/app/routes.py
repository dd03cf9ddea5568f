"""The addresses of the app: what each reads from a request, and which question it asks of the shelf."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from functools import partial, wraps
from typing import Any

from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from bilrp.app import additions, request_handling, exports, static_files, cached_results, analyses
from bilrp.app.request_handling import Counter, answered, json_of, number, regions, similarity, word
from bilrp.app.job_queue import Desk
from bilrp.app.security import Refused
from bilrp.app.analyses import Asked
from bilrp.app.collection_session import MOST_LETTERS, PAGE, Shelf
from bilrp.app.uploads import Uploads

VIEWS = ("/", "/map", "/item/{id}", "/pair/{a}/{b}", "/contrast", "/group", "/audit")
FOREVER = {"cache-control": "private, max-age=31536000, immutable"}  # an id is a hash of the content
MOST_AGAINST = 24

Handler = Callable[[Request], Awaitable[Response]]


def told(handler: Handler) -> Handler:
    """Whatever goes wrong is a status and one line of JSON."""

    @wraps(handler)
    async def safe(request: Request) -> Response:
        try:
            return await handler(request)
        except Exception as error:
            return request_handling.refusal(error)

    return safe


async def index(request: Request) -> Response:
    content, kind = static_files.table()["/web/index.html"]
    return Response(content, media_type=kind)


async def file(request: Request) -> Response:
    found = static_files.table().get(request.url.path)
    if found is None:
        return JSONResponse({"error": "there is no such file"}, 404)
    return Response(found[0], media_type=found[1])


def one_of(given: dict[str, Any], name: str) -> dict[str, Any]:
    """One item or one group of a question: {id} or {group}."""
    found = given.get(name)
    if not isinstance(found, dict) or ("id" in found) is ("group" in found):
        raise Refused(422, f"{name} is {{id}} or {{group}}")
    kind = "group" if "group" in found else "id"
    return {kind: word(found, kind)}


def shared() -> list[Route]:
    """What every form of the app has: its own files."""
    return [Route("/web/{name}", file), Route("/page/{name}", file)]


class Collected:
    """The app on a collection."""

    def __init__(self, shelf: Shelf, desk: Desk, counter: Counter) -> None:
        self.shelf = shelf  # taken once for each question: where something is added, another takes its place
        self.desk, self.counter = desk, counter
        self.uploads = Uploads()

    def routes(self) -> list[Route]:
        get = {
            "/api/about": self.about, "/api/items": self.items, "/api/items/{id}/thumbnail": self.thumbnail,
            "/api/items/{id}/picture": self.picture, "/api/groups": self.group, "/api/export/{kind}": self.export,
        }  # fmt: skip
        post = {
            "/api/neighbours": self.neighbours, "/api/side": self.side, "/api/heat": self.heat, "/api/pair": self.pair,
            "/api/contrast": self.contrast, "/api/cover": self.cover, "/api/map": self.map, "/api/audit": self.audit,
            "/api/query": self.query, "/api/add": self.add,
        }  # fmt: skip
        return [
            *(Route(view, index) for view in VIEWS),
            *(Route(path, told(handler)) for path, handler in get.items()),
            *(Route(path, told(handler), methods=["POST"]) for path, handler in post.items()),
        ]

    async def _quick(self, work: Callable[[], Any]) -> Response:
        found = await self.counter.run(lambda: request_handling.plainly(work()))
        return Response(found, media_type="application/json")

    async def _by(self, request: Request, shelf: Shelf, work: Callable[[], Any], *needed: str) -> Response:
        """Answer what needs the parts of these items: at once where they are in memory."""
        waiting = [key for key in needed if not shelf.is_ready(key)]  # and all of them are known
        return await answered(request, self.counter, self.desk, work, ready=not waiting)

    async def about(self, request: Request) -> Response:
        return await self._quick(self.shelf.about)

    async def items(self, request: Request) -> Response:
        asked, shelf = request.query_params, self.shelf
        offset = number(asked.get("offset"), "offset", 0, 2**40)
        limit = number(asked.get("limit"), "limit", PAGE, PAGE)
        words = asked.get("words", "")[:200]

        def page() -> dict[str, Any]:
            found = shelf.listed(group=asked.get("group"), words=words)
            few = found[offset : offset + limit]
            return {"total": len(found), "offset": offset, "items": [shelf.label(p) for p in few]}

        return await self._quick(page)

    async def thumbnail(self, request: Request) -> Response:
        made = await self.counter.run(partial(self.shelf.thumbnail, request.path_params["id"]))
        return Response(made, media_type="image/jpeg", headers=FOREVER)

    async def picture(self, request: Request) -> Response:
        made = await self.counter.run(partial(self.shelf.picture, request.path_params["id"]))
        return Response(made, media_type="image/jpeg", headers=FOREVER)

    @staticmethod
    def _asked(shelf: Shelf, given: dict[str, Any]) -> Asked:
        if "group" in given:
            return Asked("", similarity=similarity(given), group=word(given, "group"))
        found = Asked(word(given, "id"), regions(given, "part"), regions(given, "without"), similarity(given))
        shelf.position(found.id)
        return found

    async def neighbours(self, request: Request) -> Response:
        given, shelf = await json_of(request), self.shelf
        asked = self._asked(shelf, given)
        k = number(given.get("k"), "k", 24, analyses.MOST)
        work = partial(analyses.neighbours, shelf, asked, max(k, 1))
        return await self._by(request, shelf, work, *([asked.id] if asked.needs_parts else []))

    async def side(self, request: Request) -> Response:
        key, shelf = word(await json_of(request), "id"), self.shelf
        return await self._by(request, shelf, partial(analyses.side, shelf, key), key)

    async def heat(self, request: Request) -> Response:
        given, shelf = await json_of(request), self.shelf
        key, against = word(given, "id"), given.get("against")
        if not isinstance(against, list) or not 1 <= len(against) <= MOST_AGAINST:
            raise Refused(422, f"against is a list of 1 to {MOST_AGAINST} items")
        said = {"similarity": similarity(given)}
        asked = [self._asked(shelf, {**each, **said}) for each in against if isinstance(each, dict)]
        if len(asked) < len(against):
            raise Refused(422, "against is a list of {id, part, without} or {group}")
        needed = [key, *(each.id for each in asked if each.needs_parts)]
        return await self._by(request, shelf, partial(analyses.heat, shelf, key, asked), *needed)

    async def pair(self, request: Request) -> Response:
        given, shelf = await json_of(request), self.shelf
        a, b = word(given, "a"), word(given, "b")
        work = partial(analyses.payload, shelf, a, b, similarity(given))
        return await self._by(request, shelf, work, a, b)

    async def contrast(self, request: Request) -> Response:
        given, shelf = await json_of(request), self.shelf
        key, sides = word(given, "id"), [one_of(given, name) for name in ("first", "second")]
        work = partial(analyses.contrast, shelf, key, sides[0], sides[1], similarity(given))
        return await self._by(request, shelf, work, key)

    async def group(self, request: Request) -> Response:
        name = request.query_params.get("name", "")
        return await self._quick(partial(analyses.group, self.shelf, name))

    async def cover(self, request: Request) -> Response:
        given, shelf = await json_of(request), self.shelf
        a, b = word(given, "a"), word(given, "b")
        for key in (a, b):
            shelf.position(key)
        work = partial(analyses.cover, shelf, a, b, regions(given, "regions"), similarity(given))
        return await answered(request, self.counter, self.desk, work)

    async def map(self, request: Request) -> Response:
        return await answered(request, self.counter, self.desk, partial(cached_results.atlas, self.shelf))

    async def audit(self, request: Request) -> Response:
        return await answered(request, self.counter, self.desk, partial(cached_results.audit, self.shelf))

    async def query(self, request: Request) -> Response:
        """A file or a text as the whole of a request, its name in the address."""
        kind = request.headers.get("content-type", "").split(";")[0].strip()
        if kind != "text/plain" and kind != "application/octet-stream" and not kind.startswith("image/"):
            raise Refused(415, "bring a picture or a text")
        name, shelf = request.query_params.get("name", "")[:200], self.shelf
        if kind == "text/plain":
            said = f"a text has 1 to {MOST_LETTERS} letters"
            body = await request_handling.receive_body(request, 4 * MOST_LETTERS, said)  # of at most 4 bytes each
            try:
                text = body.decode("utf-8")
            except UnicodeDecodeError:
                raise Refused(422, "this is no text in UTF-8") from None
            if not text:
                raise Refused(422, "this is empty")
            key, called = await self.counter.run(partial(shelf.bring, text, name or text[:80]))
        else:
            key, called = await self.uploads.read(request, lambda file: shelf.bring(file, name))
        return JSONResponse({"id": key, "name": called})

    async def add(self, request: Request) -> Response:
        """A query becomes an item because somebody asked for it, one at a time; once begun it is finished."""
        query = additions.wanted(self.shelf, word(await json_of(request), "id"))

        def added() -> dict[str, Any]:
            key, now = additions.added(self.shelf, query)
            if now is not None:
                self.shelf = self.shelf.reopened(now)
            return {"id": key, "new": now is not None}

        return await answered(request, self.counter, self.desk, added, lasting=True)

    async def export(self, request: Request) -> Response:
        """A pair as a file: the page, a picture, or its matches as numbers."""
        kind, asked, shelf = request.path_params["kind"], request.query_params, self.shelf
        a, b = word(dict(asked), "a"), word(dict(asked), "b")
        if kind not in exports.KINDS:
            raise Refused(404, f"there is {', '.join(exports.KINDS)}")
        if not (shelf.is_ready(a) and shelf.is_ready(b)):
            raise Refused(409, "open the pair first: its parts are not made yet")
        made = partial(analyses.explanation, shelf, a, b, similarity(dict(asked)))
        return await exports.sent(self.counter, kind, made)
