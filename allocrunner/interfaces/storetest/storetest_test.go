package storetest_test

import (
	"testing"

	"taskapi/allocrunner/interfaces"
	"taskapi/allocrunner/interfaces/storetest"
)

func TestMemory(t *testing.T) {
	storetest.Run(t, func(testing.TB) interfaces.Store { return &storetest.Memory{} })
}
