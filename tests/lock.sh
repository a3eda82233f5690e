# The lock files from pyproject.toml and constraints*.txt, for every system: `make lock`.
# Versions are constraints.txt's; what Flower needs in others is in constraints-flower.txt.
how="--universal --python-version 3.11 --generate-hashes --no-annotate --quiet"
how="$how --custom-compile-command 'make lock'"
names=$(sed -n 's/^\([A-Za-z0-9._-]*\)==.*/^\1==/p' constraints-flower.txt)
gpu='^(torch|torchvision|triton|nvidia-[a-z0-9-]+|cuda-[a-z-]+)==' # PyTorch, and what only its CUDA build needs
rest=$(mktemp) && build=$(mktemp) && trap 'rm -f "$rest" "$build"' EXIT
echo "$names" | grep -v -i -f - constraints.txt > "$rest"
echo "setuptools>=77" > "$build" # builds fedlearn itself
eval "$UV" pip compile pyproject.toml "$build" --extra book --extra test -c constraints.txt $how -o requirements.lock
eval "$UV" pip compile pyproject.toml "$build" --extra flower -c constraints-flower.txt -c "$rest" $how -o requirements-flower.lock
# The environments on top of another have its PyTorch, and one for the CPU gets it from where the user says (see the Makefile).
without() { awk -v gpu="$gpu" '/^[^ ]/ { skip = $0 ~ gpu } !skip' "$1"; }
without requirements.lock > requirements-cpu.lock
without requirements-flower.lock > "$rest" && cat "$rest" > requirements-flower.lock
# nbgrader and twine need nothing in another version, so their locks have only what is new.
for name in class dist; do
  eval "$UV" pip compile constraints-$name.txt "$build" --no-deps -c constraints.txt $how -o requirements-$name.lock
done
