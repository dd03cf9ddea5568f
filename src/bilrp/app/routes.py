"""The addresses of the app: what each reads from a request, and which question it asks of the session."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from functools import partial, wraps
from typing import Any

from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from bilrp.app import additions, analyses, cached_results, exports, request_handling, static_files
from bilrp.app.analyses import VectorSpec
from bilrp.app.collection_session import ITEMS_PER_PAGE, MAX_TEXT_CHARACTERS, CollectionSession
from bilrp.app.job_queue import JobQueue
from bilrp.app.request_handling import (
    ThreadLimiter,
    get_regions,
    get_similarity,
    get_str,
    parse_int,
    read_json,
    respond,
)
from bilrp.app.security import HTTPError
from bilrp.app.uploads import Uploads

PAGE_PATHS = ("/", "/map", "/item/{id}", "/pair/{a}/{b}", "/contrast", "/group", "/audit")
IMMUTABLE_HEADERS = {
    "cache-control": "private, max-age=31536000, immutable"
}  # an id is a hash of the content
MAX_TARGETS = 24

Handler = Callable[[Request], Awaitable[Response]]


def handle_errors(handler: Handler) -> Handler:
    """Whatever goes wrong is a status and one line of JSON."""

    @wraps(handler)
    async def safe(request: Request) -> Response:
        try:
            return await handler(request)
        except Exception as error:
            return request_handling.error_response(error)

    return safe


async def serve_index(request: Request) -> Response:
    content, kind = static_files.load_static_files()["/web/index.html"]
    return Response(content, media_type=kind)


async def serve_file(request: Request) -> Response:
    found = static_files.load_static_files().get(request.url.path)
    if found is None:
        return JSONResponse({"error": "there is no such file"}, 404)
    return Response(found[0], media_type=found[1])


def parse_target(body: dict[str, Any], name: str) -> dict[str, Any]:
    """One item or one group of a question: {id} or {group}."""
    found = body.get(name)
    if not isinstance(found, dict) or ("id" in found) is ("group" in found):
        raise HTTPError(422, f"{name} is {{id}} or {{group}}")
    kind = "group" if "group" in found else "id"
    return {kind: get_str(found, kind)}


def make_static_routes() -> list[Route]:
    """What every form of the app has: its own files."""
    return [Route("/web/{name}", serve_file), Route("/page/{name}", serve_file)]


class CollectionRoutes:
    """The app on a collection."""

    def __init__(self, session: CollectionSession, queue: JobQueue, limiter: ThreadLimiter) -> None:
        self.session = (
            session  # taken once for each question: where something is added, another takes its place
        )
        self.queue, self.limiter = queue, limiter
        self.uploads = Uploads()

    def make_routes(self) -> list[Route]:
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
            *(Route(view, serve_index) for view in PAGE_PATHS),
            *(Route(path, handle_errors(handler)) for path, handler in get.items()),
            *(Route(path, handle_errors(handler), methods=["POST"]) for path, handler in post.items()),
        ]

    async def _respond_now(self, work: Callable[[], Any]) -> Response:
        found = await self.limiter.run(lambda: request_handling.dump_json(work()))
        return Response(found, media_type="application/json")

    async def _respond_with_parts(
        self, request: Request, session: CollectionSession, work: Callable[[], Any], *keys: str
    ) -> Response:
        """Answer what needs the parts of these items: at once where they are in memory."""
        waiting = [key for key in keys if not session.has_cached_parts(key)]  # and all of them are known
        return await respond(request, self.limiter, self.queue, work, ready=not waiting)

    async def about(self, request: Request) -> Response:
        return await self._respond_now(self.session.describe)

    async def items(self, request: Request) -> Response:
        asked, shelf = request.query_params, self.session
        offset = parse_int(asked.get("offset"), "offset", 0, 2**40)
        limit = parse_int(asked.get("limit"), "limit", ITEMS_PER_PAGE, ITEMS_PER_PAGE)
        words = asked.get("words", "")[:200]

        def page() -> dict[str, Any]:
            found = shelf.find_positions(group=asked.get("group"), words=words)
            few = found[offset : offset + limit]
            return {"total": len(found), "offset": offset, "items": [shelf.label(p) for p in few]}

        return await self._respond_now(page)

    async def thumbnail(self, request: Request) -> Response:
        made = await self.limiter.run(partial(self.session.thumbnail, request.path_params["id"]))
        return Response(made, media_type="image/jpeg", headers=IMMUTABLE_HEADERS)

    async def picture(self, request: Request) -> Response:
        made = await self.limiter.run(partial(self.session.picture, request.path_params["id"]))
        return Response(made, media_type="image/jpeg", headers=IMMUTABLE_HEADERS)

    @staticmethod
    def _parse_spec(session: CollectionSession, body: dict[str, Any]) -> VectorSpec:
        if "group" in body:
            return VectorSpec(
                "", similarity=get_similarity(body, session.collection), group=get_str(body, "group")
            )
        found = VectorSpec(
            get_str(body, "id"),
            get_regions(body, "part"),
            get_regions(body, "without"),
            get_similarity(body, session.collection),
        )
        session.position(found.id)
        return found

    async def neighbours(self, request: Request) -> Response:
        given, shelf = await read_json(request), self.session
        asked = self._parse_spec(shelf, given)
        k = parse_int(given.get("k"), "k", 24, analyses.MAX_NEIGHBOURS)
        work = partial(analyses.find_neighbours, shelf, asked, max(k, 1))
        return await self._respond_with_parts(
            request, shelf, work, *([asked.id] if asked.needs_parts else [])
        )

    async def side(self, request: Request) -> Response:
        key, shelf = get_str(await read_json(request), "id"), self.session
        return await self._respond_with_parts(
            request, shelf, partial(analyses.describe_item, shelf, key), key
        )

    async def heat(self, request: Request) -> Response:
        given, shelf = await read_json(request), self.session
        key, against = get_str(given, "id"), given.get("against")
        if not isinstance(against, list) or not 1 <= len(against) <= MAX_TARGETS:
            raise HTTPError(422, f"against is a list of 1 to {MAX_TARGETS} items")
        said = {"similarity": get_similarity(given, shelf.collection)}
        asked = [self._parse_spec(shelf, {**each, **said}) for each in against if isinstance(each, dict)]
        if len(asked) < len(against):
            raise HTTPError(422, "against is a list of {id, part, without} or {group}")
        needed = [key, *(each.id for each in asked if each.needs_parts)]
        return await self._respond_with_parts(
            request, shelf, partial(analyses.compute_attribution, shelf, key, asked), *needed
        )

    async def pair(self, request: Request) -> Response:
        given, shelf = await read_json(request), self.session
        a, b = get_str(given, "a"), get_str(given, "b")
        work = partial(analyses.build_pair_payload, shelf, a, b, get_similarity(given, shelf.collection))
        return await self._respond_with_parts(request, shelf, work, a, b)

    async def contrast(self, request: Request) -> Response:
        given, shelf = await read_json(request), self.session
        key, sides = get_str(given, "id"), [parse_target(given, name) for name in ("first", "second")]
        work = partial(
            analyses.compute_contrast, shelf, key, sides[0], sides[1], get_similarity(given, shelf.collection)
        )
        return await self._respond_with_parts(request, shelf, work, key)

    async def group(self, request: Request) -> Response:
        name = request.query_params.get("name", "")
        return await self._respond_now(partial(analyses.describe_group, self.session, name))

    async def cover(self, request: Request) -> Response:
        given, shelf = await read_json(request), self.session
        a, b = get_str(given, "a"), get_str(given, "b")
        for key in (a, b):
            shelf.position(key)
        work = partial(
            analyses.occlude_regions,
            shelf,
            a,
            b,
            get_regions(given, "regions"),
            get_similarity(given, shelf.collection),
        )
        return await respond(request, self.limiter, self.queue, work)

    async def map(self, request: Request) -> Response:
        return await respond(request, self.limiter, self.queue, partial(cached_results.get_map, self.session))

    async def audit(self, request: Request) -> Response:
        return await respond(
            request, self.limiter, self.queue, partial(cached_results.get_audit, self.session)
        )

    async def query(self, request: Request) -> Response:
        """A file or a text as the whole of a request, its name in the address."""
        kind = request.headers.get("content-type", "").split(";")[0].strip()
        if kind != "text/plain" and kind != "application/octet-stream" and not kind.startswith("image/"):
            raise HTTPError(415, "bring a picture or a text")
        name, shelf = request.query_params.get("name", "")[:200], self.session
        if kind == "text/plain":
            said = f"a text has 1 to {MAX_TEXT_CHARACTERS} letters"
            body = await request_handling.receive_body(
                request, 4 * MAX_TEXT_CHARACTERS, said
            )  # of at most 4 bytes each
            try:
                text = body.decode("utf-8")
            except UnicodeDecodeError:
                raise HTTPError(422, "this is no text in UTF-8") from None
            if not text:
                raise HTTPError(422, "this is empty")
            key, called = await self.limiter.run(partial(shelf.add_query, text, name or text[:80]))
        else:
            key, called = await self.uploads.read(request, lambda file: shelf.add_query(file, name))
        return JSONResponse({"id": key, "name": called})

    async def add(self, request: Request) -> Response:
        """A query becomes an item because somebody asked for it, one at a time; once begun it is finished."""
        query = additions.get_addable_query(self.session, get_str(await read_json(request), "id"))

        def added() -> dict[str, Any]:
            key, now = additions.append_query(self.session, query)
            if now is not None:
                self.session = self.session.with_collection(now)
            return {"id": key, "new": now is not None}

        return await respond(request, self.limiter, self.queue, added, persistent=True)

    async def export(self, request: Request) -> Response:
        """A pair as a file: the page, a picture, or its matches as numbers."""
        kind, asked, shelf = request.path_params["kind"], request.query_params, self.session
        a, b = get_str(dict(asked), "a"), get_str(dict(asked), "b")
        if kind not in exports.MEDIA_TYPES:
            raise HTTPError(404, f"there is {', '.join(exports.MEDIA_TYPES)}")
        if not (shelf.has_cached_parts(a) and shelf.has_cached_parts(b)):
            raise HTTPError(409, "open the pair first: its parts are not made yet")
        made = partial(analyses.explain_pair, shelf, a, b, get_similarity(dict(asked), shelf.collection))
        return await exports.build_download(self.limiter, kind, made)
