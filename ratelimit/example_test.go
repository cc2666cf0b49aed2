package ratelimit_test

import (
	"fmt"
	"time"

	"taskapi/ratelimit"
)

// Each caller has two requests at once and then one a second; who is refused learns when the next one is let in.
func Example() {
	limiter, err := ratelimit.New[string](ratelimit.Config{
		Key: ratelimit.Rate{PerSecond: 1, Burst: 2}, Global: ratelimit.Rate{PerSecond: 100, Burst: 100}, MaxKeys: 1000,
	})
	if err != nil {
		fmt.Println(err)
		return
	}
	now := time.Now()
	for range 3 {
		fmt.Println(limiter.Allow(now, "alice"))
	}
	fmt.Println(limiter.Allow(now, "bob").OK, limiter.Allow(now.Add(time.Second), "alice").OK)
	// Output:
	// {true 0s }
	// {true 0s }
	// {false 1s key}
	// true true
}
