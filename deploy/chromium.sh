#!/bin/sh
# Makes sure that a Chromium is there for the browser tests; installs Debian's where we may.
set -eu
for name in chromium chromium-browser google-chrome google-chrome-stable; do
    if command -v "$name" >/dev/null 2>&1; then exit 0; fi
done
if [ "$(id -u)" = 0 ] && command -v apt-get >/dev/null 2>&1; then
    echo "installing chromium for the browser tests ..."
    apt-get update -qq
    DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends chromium >/dev/null
    exit 0
fi
echo "error: the browser tests need Chromium: install it (Debian: sudo apt-get install chromium)," >&2
echo "or leave them out with: make test PYTEST_ARGS='-m \"not slow and not browser\"'" >&2
exit 1
