package disk

import (
	"encoding/binary"
	"encoding/hex"
	"errors"
	"fmt"
	"os"
	"runtime"
	"strings"

	"taskapi/allocrunner/cluster"
	"taskapi/internal/logfile"
	"taskapi/internal/proc"
)

// The log begins with a header, whose fields are
//
//	end 8, index 8, base 8, boot 16, named 1
var format = logfile.Format{Magic: "taskapi\x02", Number: 1}

// header is the log's header.
type header struct {
	end   int64  // of the last Commit that was synced: what follows does not count
	index uint64 // of that Commit
	base  uint64 // the index of the entries that the log began with
	named bool   // the log's name is on the disk

	// boot is the start of the machine in which the header was written. After another start there may be batches behind
	// the end.
	boot bootID
}

type bootID [16]byte

func (h header) encode() []byte {
	b := binary.BigEndian.AppendUint64(nil, uint64(h.end))
	b = binary.BigEndian.AppendUint64(b, h.index)
	b = append(binary.BigEndian.AppendUint64(b, h.base), h.boot[:]...)
	if h.named {
		b = append(b, 1)
	}
	return format.Header(b)
}

func decodeHeader(b []byte) (header, error) {
	fields, number, err := format.Parse(b)
	if err != nil {
		return header{}, err
	}
	if number != format.Number {
		return header{}, fmt.Errorf("it has format %d, and this taskapi knows %d: "+
			"run the taskapi that wrote it, or a newer one", number, format.Number)
	}
	h := header{
		end:   int64(binary.BigEndian.Uint64(fields)),
		index: binary.BigEndian.Uint64(fields[8:]),
		base:  binary.BigEndian.Uint64(fields[16:]),
		named: fields[40] == 1,
	}
	copy(h.boot[:], fields[24:])
	if h.end < logfile.HeaderSize {
		return header{}, fmt.Errorf("its header says that it ends at byte %d", h.end)
	}
	return h, nil
}

// headerTries is how often a damaged header is read again: another process may be writing it.
const headerTries = 100

// readHeader reads the header of an open log.
func readHeader(f *os.File) (h header, err error) {
	var b [logfile.HeaderSize]byte
	for range headerTries {
		if _, err := f.ReadAt(b[:], 0); err != nil {
			return header{}, fmt.Errorf("%w: it is cut short: %w", logfile.ErrHeader, err)
		}
		if h, err = decodeHeader(b[:]); !errors.Is(err, logfile.ErrHeader) {
			return h, err
		}
		runtime.Gosched()
	}
	return h, err
}

// thisBoot identifies the present start of the machine.
func thisBoot() (id bootID, err error) {
	text, err := proc.BootID()
	if err == nil {
		_, err = hex.Decode(id[:], []byte(strings.ReplaceAll(text, "-", "")))
	}
	if err != nil {
		return id, fmt.Errorf("%w: identify the machine's start: %w", cluster.ErrUnavailable, err)
	}
	return id, nil
}
