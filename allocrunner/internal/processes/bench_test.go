package processes_test

import (
	"log/slog"
	"testing"

	"taskapi/allocrunner/drivers"
	"taskapi/allocrunner/internal/processes"
	"taskapi/allocrunner/internal/proctest"
)

// BenchmarkRun is one whole run of /bin/true: start, exit, empty tree, logs written.
func BenchmarkRun(b *testing.B) {
	for name, cfg := range ways {
		b.Run(name, func(b *testing.B) {
			cfg.Logger = slog.New(slog.DiscardHandler)
			l := processes.New(cfg)
			defer l.Close()
			spec := drivers.Spec{Task: "t", Path: "/bin/true", Dir: "/", Logs: drivers.LogSpec{Dir: b.TempDir(), MaxFiles: 2,
				MaxFileBytes: 1 << 20}}
			for b.Loop() {
				if _, err := l.Start(b.Context(), spec); err != nil {
					b.Fatal(err)
				}
				if _, err := l.Wait(b.Context(), "t"); err != nil {
					b.Fatal(err)
				}
				if _, err := l.KillTree(b.Context(), proctest.Latest(b, l, "t")); err != nil {
					b.Fatal(err)
				}
			}
		})
	}
}
