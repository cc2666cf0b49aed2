package budget_test

import (
	"context"
	"errors"
	"testing"
	"testing/synctest"
	"time"

	"taskapi/handlers/internal/budget"
)

// asked begins to hold, and returns what is held, nil while that waits.
func asked(t *testing.T, s *budget.Share, bytes int) func() *budget.Hold {
	done := make(chan *budget.Hold, 1)
	go func() {
		h, _ := s.Hold(t.Context(), bytes) // an error at the end of the test alone
		done <- h
	}()
	synctest.Wait()
	var held *budget.Hold
	return func() *budget.Hold {
		synctest.Wait()
		select {
		case held = <-done:
		default:
		}
		return held
	}
}

// TestOwnPart: who holds all of the common half keeps nobody from its part of the other.
func TestOwnPart(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := budget.New(80)
		greedy, other := b.Join(), b.Join()
		for i := range 3 { // 20 of its own, 20 and 20 of the common
			if asked(t, greedy, 20)() == nil {
				t.Errorf("hold %d waits", i)
			}
		}
		waiting := asked(t, greedy, 1)
		if waiting() != nil {
			t.Error("it holds more than its part and the common half")
		}
		mine := asked(t, other, 15)()
		if mine == nil {
			t.Fatal("the other one waits for its own part")
		}
		more := asked(t, other, 10)
		if more() != nil {
			t.Error("the other one holds more than its part, and nothing was common any more")
		}
		mine.Keep(10)
		if more() == nil {
			t.Error("the other one waits for its own part, of which 10 were given back")
		}
		if waiting() != nil {
			t.Error("the greedy one got of another one's part")
		}
		other.Leave()
		if waiting() == nil {
			t.Error("the greedy one's part has not become larger")
		}
	})
}

// TestOrder: of the common half those get first who hold least of it, and nobody passes by one who waits for much.
func TestOrder(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := budget.New(200)
		one, two := b.Join(), b.Join()
		asked(t, one, 50)()
		asked(t, two, 50)() // all of their own
		of1, of2 := asked(t, one, 60)(), asked(t, two, 40)()
		early, much, little := asked(t, one, 30), asked(t, two, 70), asked(t, two, 10)
		if early() != nil || much() != nil || little() != nil {
			t.Fatal("more is held than there is")
		}
		of2.Keep(0)
		if early() != nil || little() != nil {
			t.Error("40 are free, and went past one who waits for 70 and holds nothing")
		}
		of1.Keep(20)
		if much() == nil {
			t.Error("80 are free, and who holds nothing waits for 70")
		}
		if early() != nil || little() != nil {
			t.Error("10 are free, and went past one who holds 20 and waits for 30")
		}
		of1.Keep(0)
		if early() == nil || little() != nil {
			t.Error("30 are free, and are not who has none")
		}
	})
}

// TestLeaving: who waits no longer keeps nobody, and time tells since when the oldest holds.
func TestLeaving(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := budget.New(100)
		s := b.Join()
		begin := time.Now()
		all := asked(t, s, 1000)() // half
		if all.Bytes() != 50 {
			t.Errorf("%d bytes are held, want half", all.Bytes())
		}
		asked(t, s, 20)()
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		ended := make(chan error)
		go func() {
			_, err := s.Hold(ctx, 40)
			ended <- err
		}()
		synctest.Wait()
		behind := asked(t, s, 30)
		if behind() != nil {
			t.Error("it went past one who waits")
		}
		if err := <-ended; !errors.Is(err, context.DeadlineExceeded) {
			t.Errorf("Hold = %v, want the end of its context", err)
		}
		if behind() == nil {
			t.Error("it waits behind one who has gone")
		}
		if got := b.Oldest(); !got.Equal(begin) {
			t.Errorf("the oldest holds since %v, want %v", got, begin)
		}
	})
}
