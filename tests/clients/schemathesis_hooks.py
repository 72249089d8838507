"""What schemathesis_api.py has Schemathesis do to each request: ask for the model that is there, and not for a long answer.

A name of a model that was made up is 404 whatever else the request holds, so that nothing else of it would be tried. One in
sixteen keeps its name. One in four of those that ask for no stream asks for one, whose events are described as
well.
"""
import os
import zlib

import schemathesis

MODEL = os.environ["CLIENTS_MODEL"]
# What bounds an answer, by the last part of the path.
LENGTHS = {"completions": "max_tokens", "completion": "n_predict", "messages": "max_tokens", "responses": "max_output_tokens"}
MOST = 16


@schemathesis.hook
def before_call(context, case, kwargs):
    """Changes the body in place; what is no object stays as it is."""
    body = case.body
    if not isinstance(body, dict):
        return
    if isinstance(body.get("model"), str) and zlib.crc32(body["model"].encode(errors="replace")) % 16:
        body["model"] = MODEL
    length = LENGTHS.get(case.operation.path.rsplit("/", 1)[-1])
    if length and body.get("stream", False) is False and zlib.crc32(repr(body).encode(errors="replace")) % 4 == 0:
        body["stream"] = True
    # What is no number, or too small, stays: it is to be refused.
    if length and (length not in body or type(body[length]) in (int, float) and body[length] > MOST):
        body[length] = MOST
