"""An S3 server in this process for fast tests: the requests of obstore and delta-rs, without signatures.

`tests/interop/test_object_store.py` runs against a real server.
"""

from __future__ import annotations

import re
from datetime import UTC, datetime, timedelta
from hashlib import md5
from threading import Lock
from urllib.parse import parse_qs, unquote, urlsplit
from xml.etree import ElementTree
from xml.sax.saxutils import escape

from interop.objects import Reply, Request

BUCKET = "lakes"


class MemoryStore:
    """Objects by key. ahead: seconds that the store's clock is ahead, for objects written from then on."""

    def __init__(self) -> None:
        self.objects: dict[str, tuple[bytes, datetime]] = {}
        self.ahead = timedelta()
        self.honours_conditions = True
        self._lock = Lock()
        self._uploads: dict[str, dict[int, bytes]] = {}

    def __call__(self, request: Request) -> Reply:
        """Answer a request."""
        url = urlsplit(request.path)
        query = {name: values[0] for name, values in parse_qs(url.query, keep_blank_values=True).items()}
        bucket, _, key = unquote(url.path).lstrip("/").partition("/")
        if bucket != BUCKET:
            return _error(404, "NoSuchBucket")
        with self._lock:
            if request.method == "GET" and not key:
                return self._list(query)
            if request.method == "POST" and not key:
                return self._delete(request)
            if "uploads" in query or "uploadId" in query:
                return self._upload(request, key, query)
            return self._object(request, key)

    def _now(self) -> datetime:
        return datetime.now(UTC) + self.ahead

    def _object(self, request: Request, key: str) -> Reply:
        found = self.objects.get(key)
        if request.method == "PUT":
            if self.honours_conditions and request.headers.get("if-none-match") == "*" and found is not None:
                return _error(412, "PreconditionFailed")
            self.objects[key] = (request.body, self._now())
            return Reply(200, {"ETag": _tag(request.body)})
        if request.method == "DELETE":
            self.objects.pop(key, None)
            return Reply(204, {})
        if found is None:
            return _error(404, "NoSuchKey")
        data, at = found
        headers = {"ETag": _tag(data), "Last-Modified": at.strftime("%a, %d %b %Y %H:%M:%S GMT")}
        if request.method == "HEAD":
            return Reply(200, {**headers, "Content-Length": str(len(data))})
        if (wanted := re.fullmatch(r"bytes=(\d*)-(\d*)", request.headers.get("range", ""))) is None:
            return Reply(200, headers, data)
        if not data:
            return _error(416, "InvalidRange")
        first = int(wanted[1]) if wanted[1] else max(len(data) - int(wanted[2]), 0)
        end = min(int(wanted[2]) + 1, len(data)) if wanted[1] and wanted[2] else len(data)
        return Reply(206, {**headers, "Content-Range": f"bytes {first}-{end - 1}/{len(data)}"}, data[first:end])

    def _list(self, query: dict[str, str]) -> Reply:
        prefix, delimiter = query.get("prefix", ""), query.get("delimiter", "")
        after = query.get("continuation-token", query.get("start-after", ""))
        most = int(query.get("max-keys", "1000"))
        folders: dict[str, None] = {}
        entries: list[str] = []
        keys = [key for key in sorted(self.objects) if key.startswith(prefix) and key > after]
        for key in keys[:most]:
            rest = key[len(prefix) :]
            if delimiter and delimiter in rest:
                folders[prefix + rest.partition(delimiter)[0] + delimiter] = None
                continue
            data, at = self.objects[key]
            entries.append(
                f"<Contents><Key>{escape(key)}</Key><Size>{len(data)}</Size><ETag>{escape(_tag(data))}</ETag>"
                f"<LastModified>{at.strftime('%Y-%m-%dT%H:%M:%S.000Z')}</LastModified></Contents>"
            )
        entries += [f"<CommonPrefixes><Prefix>{escape(each)}</Prefix></CommonPrefixes>" for each in folders]
        more = f"<NextContinuationToken>{escape(keys[most - 1])}</NextContinuationToken>" if len(keys) > most else ""
        return _xml("ListBucketResult", more + "".join(entries))

    def _delete(self, request: Request) -> Reply:
        tree = ElementTree.fromstring(request.body)
        names = [each.text or "" for each in tree.iter() if each.tag.endswith("Key")]
        for name in names:
            self.objects.pop(name, None)
        return _xml("DeleteResult", "".join(f"<Deleted><Key>{escape(name)}</Key></Deleted>" for name in names))

    def _upload(self, request: Request, key: str, query: dict[str, str]) -> Reply:
        if request.method == "POST" and "uploads" in query:
            upload = f"upload-{len(self._uploads)}"
            self._uploads[upload] = {}
            return _xml("InitiateMultipartUploadResult", f"<UploadId>{upload}</UploadId>")
        parts = self._uploads[query["uploadId"]]
        if request.method == "PUT":
            parts[int(query["partNumber"])] = request.body
            return Reply(200, {"ETag": _tag(request.body)})
        if request.method == "POST":
            self.objects[key] = (b"".join(parts[number] for number in sorted(parts)), self._now())
            return _xml("CompleteMultipartUploadResult", f"<ETag>{escape(_tag(self.objects[key][0]))}</ETag>")
        return Reply(204, {})


def _tag(data: bytes) -> str:
    return f'"{md5(data, usedforsecurity=False).hexdigest()}"'


def _error(status: int, code: str) -> Reply:
    return Reply(status, {"Content-Type": "application/xml"}, f"<Error><Code>{code}</Code></Error>".encode())


def _xml(name: str, text: str) -> Reply:
    return Reply(200, {"Content-Type": "application/xml"}, f"<{name}>{text}</{name}>".encode())
