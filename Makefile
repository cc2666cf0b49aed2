# What people run. `make` alone builds; `make demo` shows it working; `make test` and `make e2e` prove it.

GO ?= go
# The version that the manual pages name; the source has the program's.
VERSION ?= $(shell sed -n 's/^var version = "\(.*\)"$$/\1/p' cmd/taskapi/main.go)
# How long each fuzz target runs in `make fuzz`.
FUZZTIME ?= 10s
# How often `make soak` kills each of taskapi, its keeper, and both.
SOAK ?= 500
# Flags for the benchmark: make bench BENCH='-run throughput -rounds 9', or BENCH='-compare HEAD~1'.
BENCH ?=
MAN ?= bin/man

STATICCHECK = honnef.co/go/tools/cmd/staticcheck@v0.8.2
GOTESTSUM = gotest.tools/gotestsum@v1.13.0
NFPM = github.com/goreleaser/nfpm/v2/cmd/nfpm@v2.45.2
CYCLONEDX = github.com/CycloneDX/cyclonedx-gomod/cmd/cyclonedx-gomod@v1.10.0
GOLANGCI_LINT = github.com/golangci/golangci-lint/v2/cmd/golangci-lint@v2.15.0
# What other people's tests import also builds on macOS.
PORTABLE = ./auth/... ./identity/... ./ratelimit/... ./internal/peercred

# `make module PATH=...` is given a path of Go, which hides the one where programs are found: make's parent knows that.
ifeq ($(origin PATH),command line)
MODULE := $(PATH)
override PATH := $(shell /usr/bin/tr '\0' '\n' </proc/$$PPID/environ | /bin/sed -n 's/^PATH=//p')
endif

.DEFAULT_GOAL := build
.PHONY: build examples test e2e check fuzz soak bench screens demo man release test-release module clean

build: examples
	CGO_ENABLED=0 $(GO) build -trimpath -ldflags '-s -w' -o bin/taskapi ./cmd/taskapi

examples:
	CGO_ENABLED=0 $(GO) build -trimpath -ldflags '-s -w' -o bin/demo-server ./examples/server
	CGO_ENABLED=0 $(GO) build -trimpath -ldflags '-s -w' -o bin/demo-watcher ./examples/watcher

# gotestsum runs go test, prints a failure when it happens, and lists at the end which tests were skipped, and why. It
# is built without cgo and with -trimpath, as all programs that tests build: a new machine compiles the standard library
# twice and not three times, and a clone in another directory finds what is compiled. The race detector needs cgo, so
# gcc. Four packages are tested at once, since many tests wait for processes most of the time; those that take longest
# come first. go test gives a package ten minutes, which a busy machine takes.
TESTSUM = CGO_ENABLED=0 $(GO) run -trimpath $(GOTESTSUM) --format pkgname-and-test-fails
RACE = $(TESTSUM) --raw-command -- env CGO_ENABLED=1 $(GO) test -json -race -p 4

# The packages that test the whole program, with servers, browsers, containers and systems of other people.
WHOLE = ./cmd/taskapi ./packaging ./examples ./cmd/taskapi/bench
# Of these, `make test` leaves out with -short what needs a server.
SERVED = ./allocrunner/cluster/etcd ./allocrunner/cluster/stores
LISTED = $(GO) list $(WHOLE)

# The tests of auth that count allocations run without the race detector, which allocates, and so do the packages that
# read job files and the walk through all states of a task, which share nothing between goroutines.
test:
	$(RACE) -short -timeout 25m ./allocrunner ./handlers ./allocrunner/artifacts/fetch ./allocrunner/templates \
		$$($(GO) list ./... | grep -v /allocrunner/jobspec | grep -vxF "$$($(LISTED))")
	$(TESTSUM) -- -trimpath ./allocrunner/jobspec/...
	$(TESTSUM) -- -trimpath -run 'Memory$$|^TestAnyMoment$$' ./auth ./allocrunner/internal/taskrunner

e2e:
	$(RACE) -timeout 25m $(WHOLE) $(SERVED)

check:
	@test -z "$$(gofmt -l .)" || { gofmt -d .; echo 'run gofmt -w on the files above' >&2; exit 1; }
	$(GO) vet ./...
	GOOS=darwin $(GO) vet $(PORTABLE)
	CGO_ENABLED=0 GOARCH=arm64 $(GO) build -trimpath -o /dev/null ./cmd/taskapi # only the linker measures stacks
	$(GO) fix -diff ./...
	$(GO) run $(STATICCHECK) ./...
	$(GO) run $(GOLANGCI_LINT) run ./...
	$(GO) test -run '^Fuzz' ./...

fuzz:
	GO='$(GO)' FUZZTIME='$(FUZZTIME)' .ci/fuzz

# TestChaos, with many more rounds than in `make e2e`.
soak:
	CGO_ENABLED=1 $(GO) test -race -count=1 -timeout 12h -v ./cmd/taskapi -run '^TestChaos$$' -chaos $(SOAK)

bench: build
	$(GO) run ./cmd/taskapi/bench $(BENCH)
	$(GO) test -run '^$$' -bench . -benchmem ./identity ./auth ./ratelimit ./handlers ./allocrunner/updates ./allocrunner/state ./allocrunner/cluster/disk

# The manual pages, taskapi.1 and others, in bin/man or another directory: make man MAN=DIR.
man:
	CGO_ENABLED=0 $(GO) test -trimpath ./cmd/taskapi/internal/cli -run '^TestManPages$$' -count=1 -args -man-dir '$(abspath $(MAN))' \
		-man-version '$(VERSION)' -man-date "$$(git log -1 --format=%cs 2>/dev/null || date +%F)"

# The pictures of docs/screens, of real runs. They need chromium, and those of top aha, tmux, nginx and redis-server.
screens: build
	$(GO) test -count=1 ./cmd/taskapi -run '^TestUIScreens$$' -ui-screens
	docs/screens/record.sh

demo: build
	examples/demo.sh bin

OUT ?= dist
# Binaries, packages, images, lists of contents and checksums. docs/install.md says how they are checked.
release:
	GO='$(GO)' NFPM='$(NFPM)' CYCLONEDX='$(CYCLONEDX)' packaging/release $(OUT)

# Two whole releases, which must be the same, and the container image, which a Docker daemon of the test runs.
test-release:
	$(GO) test -count=1 -timeout 30m -v ./packaging -release

# make module PATH=github.com/you/taskapi gives the Go module that path.
module:
	@test -n '$(MODULE)' || { echo 'give a path: make module PATH=github.com/you/taskapi' >&2; exit 2; }
	@packaging/module '$(MODULE)'

clean:
	rm -rf bin dist
