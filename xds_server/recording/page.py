"""The admin server's page that streams a recording."""

from __future__ import annotations

from starlette.requests import Request
from starlette.responses import JSONResponse, Response, StreamingResponse
from starlette.routing import BaseRoute, Route

from xds_server.recording.recorder import Recorder, TooManyError
from xds_server.store.moments import parse_span

MOST_S = 86400.0


class RecordingPage:
    """`GET /api/recording?for=60s`: JSON lines until the time is over."""

    def __init__(self, recorder: Recorder) -> None:
        self._recorder = recorder

    def routes(self) -> list[BaseRoute]:
        """Return the routes for the admin server."""
        return [Route("/api/recording", self.recording)]

    async def recording(self, request: Request) -> Response:
        """Stream one."""
        try:
            span_s = parse_span(request.query_params.get("for", "60s"))
        except ValueError as error:
            return JSONResponse({"error": f"for: {error}"}, status_code=400)
        if not 0 < span_s <= MOST_S:
            text = "for: expected more than nothing and at most 1d"
            return JSONResponse({"error": text}, status_code=400)
        try:
            lines = self._recorder.record(span_s)
        except TooManyError as error:
            return JSONResponse({"error": str(error)}, status_code=409)
        return StreamingResponse(lines, media_type="application/x-ndjson")
