"""Hits of other libraries, by the libraries themselves: the same highlights as `bilrp.highlight`, whatever their form."""

from __future__ import annotations

import glob
import importlib.util
import os
import pwd
import shutil
import subprocess
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import bilrp
from bilrp.adapters import HighlightingRetriever, attach_highlights, highlight_hits, read_hits
from bilrp.errors import InputError
from text_folders import ARCHITECTURES

QUERY = "Where do the kittens sleep?"
TEXTS = ["A cat sat on the mat.", "Two dogs run through the snow.", "The kittens rested!", "It rains."]
METADATA: list[dict[str, Any]] = [{"page": n, "lang": "en"} for n in range(len(TEXTS))]


@pytest.fixture(scope="module")
def encoder(tmp_path_factory: pytest.TempPathFactory) -> bilrp.Encoder:
    folder = ARCHITECTURES[0].save(tmp_path_factory.mktemp("adapters"))
    return bilrp.encoders.sentence(folder)


def embed(encoder: bilrp.Encoder, text: str) -> np.ndarray:
    with torch.no_grad():
        vector = encoder.module(encoder.read(text).x)  # type: ignore[union-attr, misc]
    return torch.nn.functional.normalize(vector.flatten(), dim=0).numpy()


@pytest.fixture(scope="module")
def vectors(encoder: bilrp.Encoder) -> np.ndarray:
    return np.stack([embed(encoder, text) for text in TEXTS])


@pytest.fixture(scope="module")
def ranking(encoder: bilrp.Encoder, vectors: np.ndarray) -> list[int]:
    return np.argsort(-(vectors @ embed(encoder, QUERY)))[:3].tolist()


def check(encoder: bilrp.Encoder, hits: list[Any], ranking: list[int]) -> None:
    """The three nearest passages in order, each with the highlight that `bilrp.highlight` gives."""
    assert [hit.text for hit in hits] == [TEXTS[n] for n in ranking]
    for hit, n in zip(hits, ranking, strict=True):
        (expected,) = bilrp.highlight(encoder, QUERY, [TEXTS[n]])
        assert hit.highlight.score == pytest.approx(expected.score, abs=1e-5)
        weights = [span.weight for span in hit.highlight.passage]
        assert weights == pytest.approx([span.weight for span in expected.passage], abs=1e-5)
        assert all(TEXTS[n][span.start : span.end] == span.text for span in hit.highlight.passage)


def test_faiss(encoder: bilrp.Encoder, vectors: np.ndarray, ranking: list[int]) -> None:
    faiss = pytest.importorskip("faiss", reason="needs faiss-cpu")
    index = faiss.IndexFlatIP(vectors.shape[1])
    index.add(vectors)
    scores, ids = index.search(embed(encoder, QUERY)[None], 3)
    hits = highlight_hits(encoder, QUERY, (scores, ids), texts=TEXTS)
    check(encoder, hits, ranking)
    assert [hit.id for hit in hits] == ranking
    for hit in hits:  # the index ranks by the encoder's own similarity
        assert hit.score == pytest.approx(hit.highlight.score, abs=1e-5)  # type: ignore[union-attr]
    more = index.search(embed(encoder, QUERY)[None], 9)
    assert len(read_hits(more, texts=TEXTS)) == len(TEXTS)  # −1: FAISS has no more
    with pytest.raises(InputError, match="FAISS stores vectors only"):
        read_hits((scores, ids))
    with pytest.raises(InputError, match="hits of 2 queries"):
        read_hits(index.search(vectors[:2], 3), texts=TEXTS)
    with pytest.raises(InputError, match="is not in texts"):
        read_hits(more, texts=TEXTS[:1])


def test_chroma(encoder: bilrp.Encoder, vectors: np.ndarray, ranking: list[int]) -> None:
    chromadb = pytest.importorskip("chromadb", reason="needs chromadb")
    settings = chromadb.config.Settings(anonymized_telemetry=False)
    collection = chromadb.EphemeralClient(settings).create_collection(
        "passages", metadata={"hnsw:space": "cosine"}, embedding_function=None
    )
    collection.add(
        ids=[f"p{n}" for n in range(len(TEXTS))], documents=TEXTS, embeddings=vectors, metadatas=METADATA
    )
    result = collection.query(query_embeddings=embed(encoder, QUERY)[None], n_results=3)
    hits = highlight_hits(encoder, QUERY, result)
    check(encoder, hits, ranking)
    assert [hit.id for hit in hits] == [f"p{n}" for n in ranking]
    assert [hit.metadata["page"] for hit in hits] == ranking
    with pytest.raises(InputError, match="include="):
        read_hits(collection.query(query_embeddings=vectors[:1], n_results=1, include=["distances"]))


def test_qdrant(encoder: bilrp.Encoder, vectors: np.ndarray, ranking: list[int]) -> None:
    qdrant_client = pytest.importorskip("qdrant_client", reason="needs qdrant-client")
    models = qdrant_client.models
    client = qdrant_client.QdrantClient(":memory:")
    size = models.VectorParams(size=vectors.shape[1], distance=models.Distance.COSINE)
    client.create_collection("passages", vectors_config=size)
    client.upsert(
        "passages",
        [
            models.PointStruct(id=n, vector=vector.tolist(), payload={"body": TEXTS[n], **METADATA[n]})
            for n, vector in enumerate(vectors)
        ],
    )
    result = client.query_points("passages", query=embed(encoder, QUERY).tolist(), limit=3)
    for hits in (result, result.points):
        read = highlight_hits(encoder, QUERY, hits, text_field="body")
        check(encoder, read, ranking)
        assert [(hit.id, hit.metadata["page"]) for hit in read] == [(n, n) for n in ranking]
    with pytest.raises(InputError, match="text_field="):
        read_hits(result)
    client.close()


def test_lancedb(
    encoder: bilrp.Encoder, vectors: np.ndarray, ranking: list[int], tmp_path_factory: pytest.TempPathFactory
) -> None:
    lancedb = pytest.importorskip("lancedb", reason="needs lancedb")
    rows = [{"id": n, "text": text, "vector": vectors[n], **METADATA[n]} for n, text in enumerate(TEXTS)]
    table = lancedb.connect(str(tmp_path_factory.mktemp("lancedb"))).create_table("passages", rows)
    search = table.search(embed(encoder, QUERY)).distance_type("cosine").limit(3)
    for hits in (search.to_list(), search.to_arrow()):
        read = highlight_hits(encoder, QUERY, hits)
        check(encoder, read, ranking)
        assert [hit.metadata["page"] for hit in read] == ranking
        assert read[0].score is not None and "vector" in read[0].metadata


def find_postgres() -> Path | None:
    """Return the folder of the programs of a PostgreSQL with pgvector: of the package pgserver, or the machine's own."""
    package = importlib.util.find_spec("pgserver")
    folders = [Path(each) for each in glob.glob("/usr/lib/postgresql/*/bin")]
    if package is not None and package.origin is not None:
        folders.insert(0, Path(package.origin).parent / "pginstall" / "bin")
    if (program := shutil.which("initdb")) is not None:
        folders.append(Path(program).parent)
    for folder in folders:
        asked = subprocess.run([folder / "pg_config", "--sharedir"], capture_output=True, text=True)
        if (Path(asked.stdout.strip()) / "extension" / "vector.control").is_file():
            return folder
    return None


@pytest.fixture(scope="module")
def postgres() -> Iterator[Any]:
    """A connection to a server in a temporary folder, which listens on a socket in it only."""
    psycopg = pytest.importorskip("psycopg", reason="needs psycopg")
    programs = find_postgres()
    if programs is None:
        pytest.skip("needs a PostgreSQL with pgvector: pip install pgserver")
    # The server refuses to run as root.
    owner = pwd.getpwnam("nobody") if os.geteuid() == 0 else pwd.getpwuid(os.geteuid())
    with tempfile.TemporaryDirectory(dir="/tmp") as folder:
        os.chown(folder, owner.pw_uid, owner.pw_gid)

        def run(program: str, *arguments: str) -> None:
            command = [programs / program, *arguments, "-D", f"{folder}/data"]
            who = {"user": owner.pw_uid, "group": owner.pw_gid} if os.geteuid() == 0 else {}
            subprocess.run(command, check=True, stdout=subprocess.DEVNULL, cwd=folder, **who)  # type: ignore[call-overload]

        run("initdb", "-U", "tester", "--auth=trust", "--no-sync")
        run("pg_ctl", "-w", "-o", f"-k {folder} -c listen_addresses='' -c fsync=off", "start")
        try:
            with psycopg.connect(host=folder, user="tester", dbname="postgres") as connection:
                yield connection
        finally:
            run("pg_ctl", "-m", "immediate", "stop")


def test_pgvector(postgres: Any, encoder: bilrp.Encoder, vectors: np.ndarray, ranking: list[int]) -> None:
    factories = pytest.importorskip("psycopg.rows", reason="needs psycopg")
    with postgres.cursor(row_factory=factories.dict_row) as cursor:
        cursor.execute("CREATE EXTENSION vector")
        cursor.execute(
            f"CREATE TABLE passages (id int, body text, page int, embedding vector({vectors.shape[1]}))"
        )
        for n, vector in enumerate(vectors.tolist()):
            cursor.execute("INSERT INTO passages VALUES (%s, %s, %s, %s)", (n, TEXTS[n], n, str(vector)))
        query = "SELECT id, body, page, embedding <=> %s::vector AS distance FROM passages ORDER BY 4 LIMIT 3"
        asked = str(embed(encoder, QUERY).tolist())
        rows = cursor.execute(query, (asked,)).fetchall()
    hits = highlight_hits(encoder, QUERY, rows, text_field="body")
    check(encoder, hits, ranking)
    assert [(hit.id, hit.metadata["page"]) for hit in hits] == [(n, n) for n in ranking]
    for hit in hits:
        assert hit.highlight is not None and hit.score == pytest.approx(1 - hit.highlight.score, abs=1e-5)
    with postgres.cursor(row_factory=factories.namedtuple_row) as cursor:
        rows = cursor.execute(query, (asked,)).fetchall()
    with pytest.raises(InputError, match="dict_row"):
        highlight_hits(encoder, QUERY, rows, text_field="body")


def test_langchain(encoder: bilrp.Encoder, ranking: list[int]) -> None:
    pytest.importorskip("langchain_core", reason="needs langchain-core")
    from langchain_core.embeddings import Embeddings  # type: ignore[import-not-found]
    from langchain_core.vectorstores import InMemoryVectorStore  # type: ignore[import-not-found]

    class Own(Embeddings):
        def embed_documents(self, texts: list[str]) -> list[list[float]]:
            return [embed(encoder, text).tolist() for text in texts]

        def embed_query(self, text: str) -> list[float]:
            return embed(encoder, text).tolist()

    store = InMemoryVectorStore(Own())
    store.add_texts(TEXTS, METADATA)
    retriever = HighlightingRetriever(store.as_retriever(search_kwargs={"k": 3}), encoder)
    for documents in (retriever.invoke(QUERY), retriever(QUERY)):
        assert [document.page_content for document in documents] == [TEXTS[n] for n in ranking]
        assert [document.metadata["page"] for document in documents] == ranking
        for document in documents:
            spans = document.metadata["highlight"]["passage"]
            assert [document.page_content[s["start"] : s["end"]] for s in spans] == [s["text"] for s in spans]
    pairs = store.similarity_search_with_score(QUERY, k=3)
    check(encoder, highlight_hits(encoder, QUERY, pairs), ranking)
    assert attach_highlights(encoder, QUERY, pairs) == pairs and "highlight" in pairs[0][0].metadata


def test_llama_index(encoder: bilrp.Encoder, vectors: np.ndarray, ranking: list[int]) -> None:
    pytest.importorskip("llama_index.core", reason="needs llama-index-core")
    from llama_index.core.base.base_retriever import BaseRetriever  # type: ignore[import-not-found]
    from llama_index.core.schema import (  # type: ignore[import-not-found]
        NodeWithScore,
        QueryBundle,
        TextNode,
    )

    class Own(BaseRetriever):
        def _retrieve(self, query_bundle: QueryBundle) -> list[NodeWithScore]:
            scores = vectors @ embed(encoder, query_bundle.query_str)
            return [
                NodeWithScore(node=TextNode(text=TEXTS[n], metadata=METADATA[n]), score=float(scores[n]))
                for n in ranking
            ]

    nodes = HighlightingRetriever(Own(), encoder).retrieve(QUERY)
    assert [node.get_content() for node in nodes] == [TEXTS[n] for n in ranking]
    assert all(node.node.metadata["highlight"]["passage"] for node in nodes)
    check(encoder, highlight_hits(encoder, QUERY, Own().retrieve(QUERY)), ranking)


def test_rows_of_a_collection_of_our_own(
    encoder: bilrp.Encoder, ranking: list[int], tmp_path_factory: pytest.TempPathFactory
) -> None:
    path = tmp_path_factory.mktemp("own") / "passages.lance"
    records = [{"text": text, **METADATA[n]} for n, text in enumerate(TEXTS)]
    collection = bilrp.collection.build(records, encoder, path)
    check(encoder, highlight_hits(encoder, QUERY, collection.nearest(QUERY, 3)), ranking)


def test_what_is_not_a_hit_is_refused(encoder: bilrp.Encoder) -> None:
    for wrong in ("a text", 3, {"text": "a"}):
        with pytest.raises(InputError, match="is not a list of hits"):
            read_hits(wrong)
    with pytest.raises(InputError, match="dict_row"):
        read_hits([(1, "a text", 0.5)])
    with pytest.raises(InputError, match="no metadata to write to"):
        attach_highlights(encoder, QUERY, [{"id": 1, "text": "It rains."}])
    assert highlight_hits(encoder, QUERY, []) == []


def test_lists_that_do_not_fit_and_negative_ids_are_refused() -> None:
    with pytest.raises(InputError, match="2 distances and 1 ids"):
        read_hits((np.zeros((1, 2)), np.zeros((1, 1), int)), texts=TEXTS)
    with pytest.raises(InputError, match="hit -2 is not in texts"):
        read_hits((np.zeros((1, 1)), np.full((1, 1), -2)), texts=TEXTS)
    with pytest.raises(InputError, match="different lengths"):
        read_hits({"ids": [["a", "b"]], "documents": [["one"]]})
    with pytest.raises(InputError, match="different lengths"):
        read_hits({"ids": None, "documents": ["one"]})
