"""llama.cpp on a GGUF file: how it cuts texts, how it renders a chat, what it says to prompts of token ids, greedily.

Asked on stdin, answered on stdout, both in JSON; llama.cpp's own server is asked by HTTP, as its users do.
"""

import json
import sys
import urllib.request

import xllamacpp


def start(model: str, context: int) -> "xllamacpp.Server":
    params = xllamacpp.CommonParams()
    params.model.path = model
    params.n_ctx = context
    params.n_parallel = 1
    params.cpuparams.n_threads = 2
    params.cpuparams_batch.n_threads = 2
    # As exact as it can be: what is compared is the file.
    params.cache_type_k = params.cache_type_v = xllamacpp.ggml_type.GGML_TYPE_F32
    return xllamacpp.Server(params)


def post(url: str, body: dict) -> dict:
    request = urllib.request.Request(url, json.dumps(body).encode(), {"Content-Type": "application/json"})
    with urllib.request.urlopen(request, timeout=120) as response:
        return json.load(response)


def main() -> None:
    asked = json.load(sys.stdin)
    server = start(asked["model"], asked["context"])
    url = server.listening_address
    greedy = {"temperature": 0, "n_predict": asked["new"], "return_tokens": True, "cache_prompt": False}
    said = {
        "cut": [post(f"{url}/tokenize", {"content": t, "parse_special": True})["tokens"] for t in asked["texts"]],
        "chat": post(f"{url}/apply-template", {"messages": asked["chat"]})["prompt"],
        "replies": [post(f"{url}/completion", {"prompt": p, **greedy})["tokens"] for p in asked["prompts"]],
    }
    print(json.dumps(said))


if __name__ == "__main__":
    main()
