#!/bin/sh
# Links the folders of drom below build/sources as they are installed, for tools that read sources: mypy.
set -eu
cd "$(dirname "$0")/.."
rm -rf build/sources
mkdir -p build/sources/drom
for file in drom/*.py; do ln -s "../../../$file" build/sources/drom/; done
for part in agent scheduler workloads; do ln -s "../../../$part" "build/sources/drom/$part"; done
for part in dromlib tests; do ln -s "../../$part" build/sources/; done
