package disk

import (
	"golang.org/x/sys/unix"
)

// recover has the log end with the last batch that is whole, under the lock. The header tells where that is unless the machine has failed since:
// it is not synced, and the batches are.
func (s *store) recover() error {
	if s.head.boot == s.boot && s.head.named {
		return nil
	}
	if err := s.syncDir(); err != nil {
		return unavailable(s.dir, err)
	}
	head := s.head
	head.named = true
	if head.boot != s.boot {
		info, err := s.log.Stat()
		if err != nil {
			return unavailable(s.logPath(), err)
		}
		scan := newScanner(s.log, head.end, info.Size())
		for {
			index, _, _, err := scan.batch()
			if err != nil || index != head.index+1 { // what a crash has cut off
				break
			}
			head.index, head.end = index, scan.at
		}
		head.boot = s.boot
	}
	err := s.cutOff(head.end)
	if err == nil {
		_, err = s.log.WriteAt(head.encode(), 0)
	}
	if err == nil {
		err = unix.Fdatasync(int(s.log.Fd()))
	}
	if err != nil {
		return unavailable(s.logPath(), err)
	}
	s.head = head
	return nil
}
