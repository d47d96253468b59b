# Overwinter. `make` alone lists what there is.
#
# CARGO_TARGET_DIR is honoured where it is set.

SHELL := /bin/bash
.SHELLFLAGS := -euo pipefail -c
CARGO_TARGET_DIR ?= $(CURDIR)/target
export CARGO_TARGET_DIR
PREFIX ?= /usr/local
DEBUG := $(CARGO_TARGET_DIR)/debug
RELEASE := $(CARGO_TARGET_DIR)/release
SUPERVISOR := $(CARGO_TARGET_DIR)/supervisor/overwinter-supervisor

.PHONY: help setup supervisor build demo test lint nextest prove prove-long prove-mutants coverage matrix torture torture-small fuzz release install bench clean

help:
	@echo 'make demo      a sandbox that sleeps, wakes and survives, shown on this host'
	@echo 'make test      format, lints and every test'
	@echo 'make prove     the lifecycle against all that may happen to one sandbox, small enough for CI'
	@echo 'make torture   the real gateway, killed a thousand times with all that belongs to it'
	@echo 'make fuzz      what reads bytes from outside, for a minute each'
	@echo 'make coverage  that every line and region of the pure core is run by its tests'
	@echo 'make install   overwinter, ow and their companions into $(PREFIX)/bin'
	@echo 'make bench     figures beside the bare tools'
	@echo 'make setup     install what the above need (Debian); costs nothing when it is there'

setup:
	@scripts/setup

# Static, and built alone: nothing of the gateway's features is unified into it.
supervisor: setup
	@scripts/build-supervisor '$(SUPERVISOR)'

# Beside the gateway under a name of its own: cargo puts the one with shared libraries there.
$(DEBUG)/overwinter-supervisor.static: supervisor
	@install -D -m 0755 '$(SUPERVISOR)' '$@'

build: $(DEBUG)/overwinter-supervisor.static
	cargo build --quiet -p overwinter-gateway -p overwinter-cli -p overwinter-tests --bins
	@ln -sfn overwinter-supervisor.static '$(DEBUG)/overwinter-supervisor'

demo: build
	@'$(DEBUG)/overwinter-demo'

lint: setup
	cargo fmt --all --check
	cargo clippy --quiet --workspace --all-targets --all-features -- -D warnings

# On the reference machine (Debian, root) a test that would have to be skipped fails. What is tested
# is what ships: the seeded defects are compiled into the simulation's own tests alone.
nextest: $(DEBUG)/overwinter-supervisor.static
	if [[ $$(id -u) -eq 0 && -f /etc/debian_version ]]; then export OVERWINTER_REQUIRE_LOCAL=1; fi; \
	export OVERWINTER_SUPERVISOR='$(SUPERVISOR)'; \
	cargo nextest run --workspace; \
	cargo nextest run --workspace --run-ignored only --no-capture \
		-E 'binary(shipped) and (test(small) or test(nothing))'
	cargo nextest run --workspace --features overwinter-sim/mutants --test mutants

test: lint nextest torture-small fuzz

# Small enough for CI: every state of a world with two verbs and one of each mishap, against both
# backends, and that each flaw of the self-test is found.
prove:
	cargo run --quiet -p overwinter-sim --bin overwinter-model -- --verbs 2 --crashes 1 --lost 1
	cargo test --quiet -p overwinter-sim --test model every_flaw -- --nocapture
	cargo run --quiet -p overwinter-sim --bin overwinter-sim -- --profile all --seeds 0..5
	cargo run --quiet -p overwinter-sim --bin overwinter-sim -- --profile unfenced --seeds 5..10

# Two crashes, two lost replies, one late effect and one mishap in one history: with three verbs every
# state, with four the first eight million of each backend, breadth first (7 GB of memory).
prove-long:
	cargo run --profile prove --quiet -p overwinter-sim --bin overwinter-model -- --verbs 3
	cargo run --profile prove --quiet -p overwinter-sim --bin overwinter-model -- --limit 8000000
	cargo run --profile prove --quiet -p overwinter-sim --bin overwinter-sim -- --profile all --seeds 0..100 --coverage --no-zeros

# That the simulation bites: each seeded defect of the real code, until an invariant catches it.
prove-mutants:
	cargo run --profile prove --quiet -p overwinter-sim --features mutants --bin overwinter-sim -- --mutants 32

# The real gateway on this host, with SIGKILL of everything that takes part in a sandbox's life.
torture: build
	@'$(DEBUG)/overwinter-torture' --kills 1000

# A gateway killed at every point of every verb, on every runtime. `make test` has the whole of runc, and
# of gVisor what is around its effects.
matrix: $(DEBUG)/overwinter-supervisor.static
	OVERWINTER_MATRIX_ALL=1 OVERWINTER_SUPERVISOR='$(SUPERVISOR)' \
		cargo nextest run -p overwinter-tests --test sigkill_matrix --no-capture

torture-small: build
	@'$(DEBUG)/overwinter-torture' --kills 50

# What reads bytes from outside, for FUZZ_SECONDS (60) each; needs a nightly toolchain, and says so.
fuzz: setup
	@scripts/fuzz

# Fails below 100 %. An arm that cannot be reached is to be removed, not excluded.
coverage: setup
	@scripts/coverage

release: supervisor
	cargo build --release -p overwinter-gateway -p overwinter-cli
	@install -m 0755 '$(SUPERVISOR)' '$(RELEASE)/overwinter-supervisor'

install: release
	install -d '$(DESTDIR)$(PREFIX)/bin'
	install -m 0755 '$(RELEASE)/overwinter' '$(RELEASE)/overwinter-gateway' '$(RELEASE)/overwinter-supervisor' '$(DESTDIR)$(PREFIX)/bin'
	ln -sfn overwinter '$(DESTDIR)$(PREFIX)/bin/ow'

bench: release
	cargo build --release -p overwinter-bench
	@'$(RELEASE)/overwinter-bench'

clean:
	cargo clean
