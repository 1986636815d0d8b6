"""A page in one file: style, script and pictures inside, and a policy that forbids every request."""

import base64
import functools
import hashlib
import html
import pathlib

_STYLE = pathlib.Path(__file__).with_name("page.css")
_BODY = "body{margin:0;background:#fff}@media(prefers-color-scheme:dark){body{background:#0f141a}}"
_MAIN = "main{max-width:58rem;margin:0 auto;padding:1.2rem 1rem 4rem}"
COPY = (
    'for(const b of document.querySelectorAll("button[data-copy]"))'
    'b.addEventListener("click",()=>{const t=document.getElementById(b.dataset.copy).textContent;'
    "(navigator.clipboard?navigator.clipboard.writeText(t):Promise.reject()).then("
    '()=>{b.textContent="copied"},()=>{b.textContent="select and copy it by hand"})});'
)


@functools.cache
def style() -> str:
    """Of a report, a sphere and a notebook's card."""
    return _STYLE.read_text()


def card(body: str) -> str:
    """A part of a page, for a notebook."""
    return f'<style>{style()}</style><div class="dx">{body}</div>'


def page(title: str, body: str, *scripts: str) -> str:
    """The whole document. Scripts are named by their digests: no other runs, whatever the text says."""
    sheet = style() + _BODY + _MAIN
    allowed = " ".join(_digest(script) for script in scripts) or "'none'"
    policy = (
        f"default-src 'none'; style-src {_digest(sheet)}; script-src {allowed}; img-src data:; "
        "base-uri 'none'; form-action 'none'"
    )
    return "\n".join(
        [
            '<!doctype html><html lang="en"><head><meta charset="utf-8">',
            f'<meta http-equiv="Content-Security-Policy" content="{policy}">',
            '<meta name="viewport" content="width=device-width, initial-scale=1">',
            '<link rel="icon" href="data:,">',
            f"<title>{html.escape(title)}</title>",
            f"<style>{sheet}</style></head>",
            f'<body class="dx"><main>{body}</main>',
            *(f"<script>{script}</script>" for script in scripts),
            "</body></html>\n",
        ]
    )


def _digest(text: str) -> str:
    """As a content security policy names an inline script or style."""
    return f"'sha256-{base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()}'"
