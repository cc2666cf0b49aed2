package keeper

import (
	"log/slog"
	"os"

	"taskapi/allocrunner/internal/driver"
)

// MaxRequests is how many requests a client may have under way.
const MaxRequests = maxRequests

// RunIdle is the life of a keeper in dir that has neither task nor client.
func RunIdle(dir string) error {
	root, err := os.OpenRoot(dir)
	if err != nil {
		return err
	}
	defer root.Close()
	logger := slog.New(slog.DiscardHandler)
	s := &server{dir: root, idle: defaultIdle, logger: logger, local: driver.New(driver.Config{Logger: logger})}
	s.run(nil)
	return nil
}
