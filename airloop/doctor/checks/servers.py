"""Family G, fast: servers of vLLM, before any is started or asked for a token."""

from __future__ import annotations

import os
from collections.abc import Sequence
from urllib.parse import urlsplit

from airloop.doctor.base import Finding, check, passed
from airloop.doctor.case import Case
from airloop.engine.vllm.version import INSTALL, MINOR, caution, installed, skew

ASKED_S = 3.0  # a server that is not there yet is asked again when the run starts
NEAR = ("localhost", "127.0.0.1", "::1")


@check("G-vllm", stage="fast", title="vLLM is the version that air is written for")
def vllm_is_the_pinned_one(case: Case) -> Finding:
    """Of the interpreter that servers are started with, or of servers that run; a development build passes."""
    config = case.config
    if config.inference.backend != "vllm":
        return passed("the policy is sampled here, not by vLLM")
    vllm = config.inference.vllm
    if config.cluster.roles:
        return passed("servers are started on nodes, and asked then")
    if vllm.urls:
        urls = [url.rstrip("/").removesuffix("/v1") for url in vllm.urls]
        versions = _asked(urls, os.environ.get(vllm.api_key_env, ""))
    else:
        versions = {vllm.python or "air's own interpreter": installed(vllm.python)}
    if problem := skew(versions):
        why = "the same policy would have other log-probs on each, and weights, routes or replies may differ"
        return Finding("fail", problem, why, f"run the same on all: {INSTALL}, where servers run")
    if text := caution(versions):
        why = "routes, replies and plugins change with minor versions; what is missing is told when the run starts"
        return Finding("warn", text, why, f"if anything goes wrong: {INSTALL}, where servers run")
    told = [f"{version} ({where})" for where, version in versions.items() if version]
    return passed(f"vLLM {', '.join(told)}" if told else f"servers are asked when they start; {MINOR} is expected")


def _asked(urls: Sequence[str], key: str) -> dict[str, str]:
    """What each says, all at once; nothing of one that does not answer."""
    from concurrent.futures import ThreadPoolExecutor

    with ThreadPoolExecutor(max(1, min(16, len(urls)))) as pool:
        return dict(zip(urls, pool.map(lambda url: _version(url, key), urls), strict=True))


def _version(url: str, key: str) -> str:
    import httpx  # where there are servers to ask, only

    from airloop.certificates import certificates_for

    headers = {"Authorization": f"Bearer {key}"} if key else {}
    near = (urlsplit(url).hostname or "") in NEAR
    try:
        with httpx.Client(timeout=ASKED_S, verify=certificates_for(url), trust_env=not near) as client:
            return str(client.get(f"{url}/version", headers=headers).json()["version"])
    except (httpx.HTTPError, httpx.InvalidURL, OSError, ValueError, KeyError, TypeError):
        return ""
