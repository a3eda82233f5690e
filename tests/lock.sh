# The lock files from pyproject.toml and constraints*.txt, for every system: `make lock`.
# Versions are constraints.txt's; what Flower needs in others is in constraints-flower.txt.
how="--universal --python-version 3.11 --generate-hashes --no-annotate --quiet"
how="$how --custom-compile-command 'make lock'"
names=$(sed -n 's/^\([A-Za-z0-9._-]*\)==.*/^\1==/p' constraints-flower.txt)
rest=$(mktemp) && build=$(mktemp) && trap 'rm -f "$rest" "$build"' EXIT
echo "$names" | grep -v -i -f - constraints.txt > "$rest"
echo "setuptools>=77" > "$build" # builds fedlearn itself
eval "$UV" pip compile pyproject.toml "$build" --extra book --extra seeing --extra test -c constraints.txt $how -o requirements.lock
eval "$UV" pip compile pyproject.toml "$build" --extra flower -c constraints-flower.txt -c "$rest" $how -o requirements-flower.lock
# nbgrader needs nothing in another version, so its lock has only what is new.
eval "$UV" pip compile constraints-class.txt "$build" --no-deps -c constraints.txt $how -o requirements-class.lock
