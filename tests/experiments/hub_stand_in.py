"""A stand-in for the Hugging Face hub on this machine: as much of its interface as uploads and downloads use."""

from __future__ import annotations

import base64
import fnmatch
import hashlib
import json
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from threading import Thread
from typing import Any, ClassVar
from urllib.parse import unquote, urlsplit

import yaml


class StandIn(ThreadingHTTPServer):
    """Keeps {repository: {path: content}}; repositories whose owner is "stranger" may not be written."""

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), Answers)
        self.repositories: dict[str, dict[str, bytes]] = {}
        self.private: dict[str, bool] = {}

    @property
    def address(self) -> str:
        return f"http://127.0.0.1:{self.server_address[1]}"

    def commit(self, repository: str) -> str:
        """Return the name of the present state."""
        content = self.repositories[repository]
        return hashlib.sha1(repr(sorted(content.items())).encode()).hexdigest()


@contextmanager
def hub() -> Iterator[StandIn]:
    server = StandIn()
    thread = Thread(target=server.serve_forever, daemon=True)
    thread.start()
    try:
        yield server
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


class Answers(BaseHTTPRequestHandler):
    server: StandIn
    protocol_version = "HTTP/1.1"
    REFUSED: ClassVar[dict[str, str]] = {"X-Error-Message": "You don't have the rights to write here"}

    def log_message(self, *_: Any) -> None:
        pass

    def do_POST(self) -> None:
        body = self._body()
        path = urlsplit(self.path).path
        if path == "/api/repos/create":
            asked = json.loads(body)
            owner, name = asked.get("organization"), asked["name"]
            if owner == "stranger":
                return self._answer(403, {"error": "forbidden"}, self.REFUSED)
            repository = f"{owner}/{name}"
            if repository in self.server.repositories:
                return self._answer(409, {"url": f"{self.server.address}/{repository}"})
            self.server.repositories[repository] = {".gitattributes": b""}
            # Clients of different ages say it differently.
            self.server.private[repository] = asked.get("private") is True or asked.get("visibility") == "private"
            return self._answer(200, {"url": f"{self.server.address}/{repository}"})
        if path == "/api/validate-yaml":
            # The head of a README; the client refuses to send one with errors.
            head = yaml.safe_load(json.loads(body)["content"].split("---")[1])
            errors = [] if isinstance(head["tags"], list) and head["library_name"] else [{"message": "no card"}]
            return self._answer(200, {"errors": errors, "warnings": []})
        repository, _, rest = path.removeprefix("/api/models/").rpartition("/preupload/")
        if repository:
            files = [{**file, "uploadMode": "regular", "shouldIgnore": False} for file in json.loads(body)["files"]]
            return self._answer(200, {"files": files, "rest": rest})
        repository, _, rest = path.removeprefix("/api/models/").rpartition("/commit/")
        content = self.server.repositories[repository]
        for line in map(json.loads, body.splitlines()):
            if line["key"] == "file":
                content[line["value"]["path"]] = base64.b64decode(line["value"]["content"])
            if line["key"] == "deletedFile":
                del content[line["value"]["path"]]
        commit = self.server.commit(repository)
        address = f"{self.server.address}/{repository}/commit/{commit}"
        return self._answer(200, {"success": True, "commitOid": commit, "commitUrl": address, "hookOutput": ""})

    def do_GET(self) -> None:
        path = unquote(urlsplit(self.path).path)
        if path.startswith("/api/models/"):
            return self._describe(path.removeprefix("/api/models/"))
        repository, _, rest = path.strip("/").partition("/resolve/")
        file = rest.partition("/")[2]
        content = self.server.repositories.get(repository, {}).get(file)
        if content is None:
            return self._answer(404, {"error": "Entry not found"}, {"X-Error-Code": "EntryNotFound"})
        headers = {"ETag": f'"{hashlib.sha1(content).hexdigest()}"', "X-Repo-Commit": self.server.commit(repository)}
        return self._send(200, content, {**headers, "Content-Type": "application/octet-stream"})

    def do_HEAD(self) -> None:
        self.do_GET()

    def _describe(self, asked: str) -> None:
        repository = next((name for name in self.server.repositories if fnmatch.fnmatch(asked, f"{name}*")), None)
        if repository is None:
            return self._answer(404, {"error": "Repository not found"}, {"X-Error-Code": "RepoNotFound"})
        content = self.server.repositories[repository]
        if "/tree/" in asked:
            entries = [
                {"type": "file", "path": path, "size": len(data), "oid": hashlib.sha1(data).hexdigest()}
                for path, data in content.items()
            ]
            return self._answer(200, entries)
        facts = {"id": repository, "modelId": repository, "sha": self.server.commit(repository), "private": False}
        return self._answer(200, {**facts, "siblings": [{"rfilename": path} for path in content], "tags": []})

    def _body(self) -> bytes:
        if self.headers.get("Transfer-Encoding") != "chunked":
            return self.rfile.read(int(self.headers.get("Content-Length", 0)))
        pieces = []
        while size := int(self.rfile.readline(), 16):
            pieces.append(self.rfile.read(size))
            self.rfile.readline()
        self.rfile.readline()
        return b"".join(pieces)

    def _answer(self, status: int, content: Any, headers: dict[str, str] | None = None) -> None:
        self._send(status, json.dumps(content).encode(), {"Content-Type": "application/json", **(headers or {})})

    def _send(self, status: int, body: bytes, headers: dict[str, str]) -> None:
        self.send_response(status)
        for name, value in {**headers, "Content-Length": str(len(body))}.items():
            self.send_header(name, value)
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(body)
