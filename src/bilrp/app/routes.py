"""URL routes of the app: handlers check the request; the work is done by `analyses`, `cached_results` and the session."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from functools import partial, wraps

from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from bilrp.answers.http_shapes import AddAnswer, ItemsAnswer
from bilrp.app import additions, analyses, cached_results, exports, repairs, request_handling, static_files
from bilrp.app.analyses import VectorSpec
from bilrp.app.collection_session import ITEMS_PER_PAGE, MAX_TEXT_CHARACTERS, CollectionSession
from bilrp.app.job_queue import JobQueue
from bilrp.app.request_handling import (
    ThreadLimiter,
    get_regions,
    get_similarity,
    get_str,
    get_where,
    parse_int,
    read_json,
    respond,
)
from bilrp.app.security import HTTPError
from bilrp.app.uploads import Uploads

PAGE_PATHS = ("/", "/map", "/item/{id:path}", "/pair/{ids:path}", "/contrast", "/group", "/audit", "/repair")
# an id is a hash of the content
IMMUTABLE_HEADERS = {"cache-control": "private, max-age=31536000, immutable"}
MAX_TARGETS = 24

Handler = Callable[[Request], Awaitable[Response]]


def handle_errors(handler: Handler) -> Handler:
    """Wrap a handler so that exceptions become a status code and a JSON object with one line."""

    @wraps(handler)
    async def handle(request: Request) -> Response:
        try:
            return await handler(request)
        except Exception as error:
            return request_handling.error_response(error)

    return handle


async def serve_index(request: Request) -> Response:
    content, kind = static_files.load_static_files()["/web/index.html"]
    return Response(content, media_type=kind)


async def serve_file(request: Request) -> Response:
    file = static_files.load_static_files().get(request.url.path)
    if file is None:
        return JSONResponse({"error": "no such file"}, 404)
    return Response(file[0], media_type=file[1])


def parse_target(body: Mapping[str, object], name: str) -> dict[str, str]:
    """Return one item or one group: {id} or {group}."""
    target = body.get(name)
    if not isinstance(target, dict) or ("id" in target) is ("group" in target):
        raise HTTPError(422, f"{name} must be {{id}} or {{group}}")
    kind = "group" if "group" in target else "id"
    return {kind: get_str(target, kind)}


def make_static_routes() -> list[Route]:
    """Return the routes of the static files."""
    return [Route("/web/{name}", serve_file), Route("/page/{name}", serve_file)]


class CollectionRoutes:
    """Handlers of the app on a collection."""

    def __init__(self, session: CollectionSession, queue: JobQueue, limiter: ThreadLimiter) -> None:
        # Handlers read it once per request: adding an item replaces it.
        self.session, self.queue, self.limiter = session, queue, limiter
        self.uploads = Uploads()
        self.repairs = repairs.RepairHandlers(lambda: self.session, queue, limiter)

    def make_routes(self) -> list[Route]:
        get = {
            "/api/about": self.about, "/api/items": self.items, "/api/items/{id}/thumbnail": self.thumbnail,
            "/api/items/{id}/picture": self.picture, "/api/items/{id}/text": self.text, "/api/groups": self.group,
            "/api/export/{kind}": self.export,
        }  # fmt: skip
        post = {
            "/api/neighbours": self.neighbours, "/api/side": self.side, "/api/heat": self.heat, "/api/pair": self.pair,
            "/api/contrast": self.contrast, "/api/cover": self.cover, "/api/map": self.map, "/api/audit": self.audit,
            "/api/query": self.query, "/api/add": self.add, "/api/highlight": self.highlight,
            "/api/search": self.search, "/api/explain": self.explain, **self.repairs.list_handlers(),
        }  # fmt: skip
        return [
            *(Route(view, serve_index) for view in PAGE_PATHS),
            # ids of records may have slashes
            *(
                Route(path.replace("{id}", "{id:path}"), handle_errors(handler))
                for path, handler in get.items()
            ),
            *(Route(path, handle_errors(handler), methods=["POST"]) for path, handler in post.items()),
        ]

    async def _respond_now(self, work: Callable[[], object]) -> Response:
        content = await self.limiter.run(lambda: request_handling.dump_json(work()))
        return Response(content, media_type="application/json")

    async def _respond_with_parts(
        self, request: Request, session: CollectionSession, work: Callable[[], object], *keys: str
    ) -> Response:
        """Answer a request that needs the parts of these items: at once if they are in memory."""
        missing = [key for key in keys if not session.has_cached_parts(key)]  # 404 for unknown ids
        return await respond(request, self.limiter, self.queue, work, ready=not missing)

    async def about(self, request: Request) -> Response:
        """Return what the start page shows, and the files that a pair can be saved as."""
        formats = [[kind, export.label] for kind, export in exports.EXPORTS.items()]
        return await self._respond_now(lambda: {**self.session.describe(), "exports": formats})

    async def items(self, request: Request) -> Response:
        params, session = request.query_params, self.session
        offset = parse_int(params.get("offset"), "offset", 0, 2**40)
        limit = parse_int(params.get("limit"), "limit", ITEMS_PER_PAGE, ITEMS_PER_PAGE)
        words = params.get("words", "")[:200]
        where = get_where(request_handling.parse_json(params.get("filters") or "[]"), session.filter_columns)

        def list_page() -> ItemsAnswer:
            positions = session.find_positions(group=params.get("group"), words=words, where=where)
            labels = [session.label(p) for p in positions[offset : offset + limit]]
            return {"total": len(positions), "offset": offset, "items": labels}

        return await self._respond_now(list_page)

    async def thumbnail(self, request: Request) -> Response:
        return await self._respond_with_jpeg(partial(self.session.thumbnail, request.path_params["id"]))

    async def picture(self, request: Request) -> Response:
        return await self._respond_with_jpeg(partial(self.session.picture, request.path_params["id"]))

    async def text(self, request: Request) -> Response:
        return await self._respond_now(partial(self.session.read_text, request.path_params["id"]))

    async def _respond_with_jpeg(self, work: Callable[[], bytes]) -> Response:
        return Response(await self.limiter.run(work), media_type="image/jpeg", headers=IMMUTABLE_HEADERS)

    @staticmethod
    def _parse_spec(session: CollectionSession, body: Mapping[str, object]) -> VectorSpec:
        if "group" in body:
            return VectorSpec(
                "", similarity=get_similarity(body, session.collection), group=get_str(body, "group")
            )
        spec = VectorSpec(
            get_str(body, "id"),
            get_regions(body, "part"),
            get_regions(body, "without"),
            get_similarity(body, session.collection),
        )
        session.position(spec.id)  # 404 for an unknown id
        return spec

    async def neighbours(self, request: Request) -> Response:
        body, session = await read_json(request), self.session
        spec = self._parse_spec(session, body)
        k = parse_int(body.get("k"), "k", 24, analyses.MAX_NEIGHBOURS)
        where = get_where(body.get("filters"), session.filter_columns)
        work = partial(analyses.find_neighbours, session, spec, max(k, 1), where)
        return await self._respond_with_parts(
            request, session, work, *([spec.id] if spec.needs_parts else [])
        )

    async def search(self, request: Request) -> Response:
        """Find the nearest items of a text or an id, with their texts, metadata and highlights."""
        body, session = await read_json(request), self.session
        if ("text" in body) is ("id" in body):
            raise HTTPError(422, "send a text, or the id of an item or query")
        k = max(1, parse_int(body.get("k"), "k", 10, analyses.MAX_NEIGHBOURS))
        where = get_where(body.get("filters"), session.filter_columns)
        similarity, wants_highlights = get_similarity(body, session.collection), body.get("highlight", False)
        if not isinstance(wants_highlights, bool):
            raise HTTPError(422, "highlight must be true or false")
        if wants_highlights and k > MAX_TARGETS:
            raise HTTPError(422, f"at most {MAX_TARGETS} neighbours are highlighted: give a smaller k")
        if "id" in body:
            key = asked = get_str(body, "id")
            session.position(key)  # 404 for an unknown id
        else:
            asked = body["text"]
            if not isinstance(asked, str):
                raise HTTPError(422, "text must be a string")
            key, _ = await self.limiter.run(partial(session.add_query, asked, asked[:80]))
        work = partial(
            analyses.search, session, asked, key, k, similarity=similarity, where=where,
            with_highlights=wants_highlights,
        )  # fmt: skip
        return await respond(request, self.limiter, self.queue, work)

    async def explain(self, request: Request) -> Response:
        body, session = await read_json(request), self.session
        a, b = get_str(body, "a"), get_str(body, "b")
        work = partial(analyses.explain_answer, session, a, b, get_similarity(body, session.collection))
        return await self._respond_with_parts(request, session, work, a, b)

    async def side(self, request: Request) -> Response:
        key, session = get_str(await read_json(request), "id"), self.session
        return await self._respond_with_parts(
            request, session, partial(analyses.describe_item, session, key), key
        )

    async def heat(self, request: Request) -> Response:
        body, session = await read_json(request), self.session
        key, against = get_str(body, "id"), body.get("against")
        if not isinstance(against, list) or not 1 <= len(against) <= MAX_TARGETS:
            raise HTTPError(422, f"against must be a list of 1 to {MAX_TARGETS} items")
        if not all(isinstance(target, dict) for target in against):
            raise HTTPError(422, "against must be a list of {id, part, without} or {group}")
        similarity = {"similarity": get_similarity(body, session.collection)}
        specs = [self._parse_spec(session, target | similarity) for target in against]
        needed = [key, *(spec.id for spec in specs if spec.needs_parts)]
        work = partial(analyses.compute_attribution, session, key, specs)
        return await self._respond_with_parts(request, session, work, *needed)

    async def highlight(self, request: Request) -> Response:
        """Weigh the words or regions of an item or query and of its hits; needs no parts."""
        body, session = await read_json(request), self.session
        key, hits = get_str(body, "id"), body.get("hits")
        if not isinstance(hits, list) or not 0 < len(hits) <= MAX_TARGETS:
            raise HTTPError(422, f"hits must be a list of 1 to {MAX_TARGETS} ids")
        ids = [get_str({"hits": each}, "hits") for each in hits]
        for each in (key, *ids):
            session.position(each)  # 404 for an unknown id
        similarity = get_similarity(body, session.collection)
        work = partial(analyses.highlight_hits, session, key, ids, similarity)
        return await respond(request, self.limiter, self.queue, work)

    async def pair(self, request: Request) -> Response:
        body, session = await read_json(request), self.session
        a, b = get_str(body, "a"), get_str(body, "b")
        work = partial(analyses.build_pair_payload, session, a, b, get_similarity(body, session.collection))
        return await self._respond_with_parts(request, session, work, a, b)

    async def contrast(self, request: Request) -> Response:
        body, session = await read_json(request), self.session
        key, sides = get_str(body, "id"), [parse_target(body, name) for name in ("first", "second")]
        work = partial(
            analyses.compute_contrast,
            session,
            key,
            sides[0],
            sides[1],
            get_similarity(body, session.collection),
        )
        return await self._respond_with_parts(request, session, work, key)

    async def group(self, request: Request) -> Response:
        name = request.query_params.get("name", "")
        return await self._respond_now(partial(analyses.describe_group, self.session, name))

    async def cover(self, request: Request) -> Response:
        body, session = await read_json(request), self.session
        a, b = get_str(body, "a"), get_str(body, "b")
        for key in (a, b):
            session.position(key)
        work = partial(
            analyses.occlude_regions,
            session,
            a,
            b,
            get_regions(body, "regions"),
            get_similarity(body, session.collection),
        )
        return await respond(request, self.limiter, self.queue, work)

    async def map(self, request: Request) -> Response:
        return await respond(request, self.limiter, self.queue, partial(cached_results.get_map, self.session))

    async def audit(self, request: Request) -> Response:
        return await respond(
            request, self.limiter, self.queue, partial(cached_results.get_audit, self.session)
        )

    async def query(self, request: Request) -> Response:
        """Read a file or a text, which is the request body; its name is in the URL."""
        kind = request_handling.media_type(request)
        if kind != "text/plain" and kind != "application/octet-stream" and not kind.startswith("image/"):
            raise HTTPError(415, "send an image or a text")
        name, session = request.query_params.get("name", "")[:200], self.session
        if kind == "text/plain":
            message = f"a text must have 1 to {MAX_TEXT_CHARACTERS} characters"
            max_bytes = 4 * MAX_TEXT_CHARACTERS  # UTF-8 has at most 4 bytes per character
            body = await request_handling.receive_body(request, max_bytes, message)
            try:
                text = body.decode("utf-8")
            except UnicodeDecodeError:
                raise HTTPError(422, "the text is not UTF-8") from None
            if not text:
                raise HTTPError(422, "the text is empty")
            key, shown_name = await self.limiter.run(partial(session.add_query, text, name or text[:80]))
        else:
            key, shown_name = await self.uploads.read(request, lambda file: session.add_query(file, name))
        return JSONResponse({"id": key, "name": shown_name})

    async def add(self, request: Request) -> Response:
        """Add a query to the collection as an item; once started, this finishes even if the client disconnects."""
        query = additions.get_addable_query(self.session, get_str(await read_json(request), "id"))

        def append() -> AddAnswer:
            key, collection = additions.append_query(self.session, query)
            if collection is not None:
                self.session = self.session.with_collection(collection)
            return {"id": key, "new": collection is not None}

        return await respond(request, self.limiter, self.queue, append, persistent=True)

    async def export(self, request: Request) -> Response:
        """Return a pair as a file: the page, an image, or its matches."""
        kind, body, session = request.path_params["kind"], dict(request.query_params), self.session
        a, b = get_str(body, "a"), get_str(body, "b")
        if kind not in exports.EXPORTS:
            raise HTTPError(404, f"export formats: {', '.join(exports.EXPORTS)}")
        if not (session.has_cached_parts(a) and session.has_cached_parts(b)):
            raise HTTPError(409, "open the pair first: its parts are not computed yet")
        compute = partial(analyses.explain_pair, session, a, b, get_similarity(body, session.collection))
        return await exports.build_download(self.limiter, kind, compute)
