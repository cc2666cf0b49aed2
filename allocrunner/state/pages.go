package state

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"hash/fnv"
	"math/bits"
)

// bbolt trusts its file: one with a damaged page makes it panic, read beyond what is mapped, or recurse until the process dies, none of
// which an error can be made of afterwards. So the pages are read here first, from a copy, with every bound checked. What follows is
// bbolt's format, version 2 (go.etcd.io/bbolt/internal/common), which has been the same since 2014. Numbers are in the machine's own order.
const (
	headerSize  = 16 // of a page: id, flags, count, overflow
	elementSize = 16 // of an entry in the table that follows, in leaves and branches alike
	metaSize    = 64 // of the part of a meta page that has a meaning, its checksum at the end

	metaMagic   = 0xED0CDAED
	metaVersion = 2

	branchFlag   = 0x01
	leafFlag     = 0x02
	freelistFlag = 0x10
	bucketFlag   = 0x01 // of an entry in a leaf

	bucketHeader = 16      // of a bucket's value: its root page, a sequence number
	manyFree     = 0xFFFF  // a count of free pages that is too high for the header: the real one comes first
	minPageSize  = 1 << 10 // bbolt's bounds when it looks for the second meta page
	maxPageSize  = 1 << 24
)

var native = binary.NativeEndian

// meta says where the tree of one transaction begins.
type meta struct {
	pageSize             uint64
	root, freelist, high uint64 // pages; high is one above the last
	txid                 uint64
}

// readMeta reads the meta page that begins at b.
func readMeta(b []byte) (meta, bool) {
	if len(b) < headerSize+metaSize {
		return meta{}, false
	}
	b = b[headerSize:][:metaSize]
	sum := fnv.New64a()
	sum.Write(b[:metaSize-8])
	m := meta{
		pageSize: uint64(native.Uint32(b[8:])),
		root:     native.Uint64(b[16:]), freelist: native.Uint64(b[32:]), high: native.Uint64(b[40:]),
		txid: native.Uint64(b[48:]),
	}
	ok := native.Uint32(b) == metaMagic && native.Uint32(b[4:]) == metaVersion && native.Uint64(b[56:]) == sum.Sum64() &&
		m.pageSize >= minPageSize && m.pageSize <= maxPageSize && bits.OnesCount64(m.pageSize) == 1
	return m, ok
}

// newestMeta is the meta page that bbolt goes by: that of the last transaction, or of the one before when the last one is torn.
func newestMeta(data []byte) (meta, bool) {
	first, ok := readMeta(data)
	if ok {
		if second, ok := metaAt(data, first.pageSize); ok && second.txid > first.txid {
			return second, true
		}
		return first, true
	}
	for size := uint64(minPageSize); size <= maxPageSize; size *= 2 {
		if second, ok := metaAt(data, size); ok && second.pageSize == size {
			return second, true
		}
	}
	return meta{}, false
}

func metaAt(data []byte, offset uint64) (meta, bool) {
	if offset >= uint64(len(data)) {
		return meta{}, false
	}
	return readMeta(data[offset:])
}

// element is a value in the tree.
type element struct {
	bucket string // the outermost that it is in
	key    string // behind the names of the buckets in between, each with a NUL at its end
	value  []byte
}

// tree reads what the newest transaction of a file has left. What is wrong is noted, and the rest is read on.
type tree struct {
	data     []byte
	meta     meta
	used     map[uint64]bool // pages that have been come by
	elements []element
	problems []error
}

// readTree reads a whole file. It does work in proportion to the file's size, whatever is in it.
func readTree(data []byte) *tree {
	t := &tree{data: data, used: map[uint64]bool{}}
	var ok bool
	if t.meta, ok = newestMeta(data); !ok {
		t.problem("neither meta page is valid")
		return t
	}
	if need := t.meta.high; need > uint64(len(data))/t.meta.pageSize {
		t.problem("the file is cut short: it has %d bytes of %d pages of %d", len(data), need, t.meta.pageSize)
	}
	t.page(t.meta.root, place{})
	t.freelist()
	return t
}

func (t *tree) problem(format string, args ...any) {
	t.problems = append(t.problems, fmt.Errorf(format, args...))
}

// place is where in the tree a page is.
type place struct {
	bucket   string // empty for the root
	inner    string // the buckets within that one, as in an element's key
	from, to []byte // the bounds of its keys, nil for none
}

// claim gives the bytes of a page with those that it overflows into, each of which belongs to it alone.
func (t *tree) claim(id uint64) ([]byte, bool) {
	size := t.meta.pageSize
	last := min(t.meta.high, uint64(len(t.data))/size) // one above the last page that is there
	if id < 2 || id >= last {
		t.problem("page %d is not in the file, which has %d", id, last)
		return nil, false
	}
	head := t.data[id*size:]
	count := 1 + uint64(native.Uint32(head[12:]))
	if got := native.Uint64(head); got != id {
		t.problem("page %d says that it is page %d", id, got)
		return nil, false
	}
	if count > last-id {
		t.problem("page %d goes on for %d pages, beyond the last", id, count)
		return nil, false
	}
	for i := range count {
		if t.used[id+i] {
			t.problem("page %d is used twice", id+i)
			return nil, false
		}
		t.used[id+i] = true
	}
	return head[:count*size], true
}

// page reads the page of a tree and those below it.
func (t *tree) page(id uint64, at place) {
	body, ok := t.claim(id)
	if !ok {
		return
	}
	t.node(fmt.Sprintf("page %d", id), body, at)
}

// node reads a branch or a leaf, which may lie within a page.
func (t *tree) node(name string, body []byte, at place) {
	switch flags := native.Uint16(body[8:]); flags {
	case leafFlag:
		t.leaf(name, body, at)
	case branchFlag:
		t.branch(name, body, at)
	default:
		t.problem("%s is neither a branch nor a leaf", name)
	}
}

// cell is an entry of a branch or a leaf.
type cell struct {
	flags      uint32 // of a leaf's
	child      uint64 // of a branch's
	key, value []byte
}

// cells reads the entries of a node. bbolt writes their keys and values one after the other, and the first right behind the table, so
// that a count, a place or a size that has changed shows.
func (t *tree) cells(name string, body []byte, leaf bool) []cell {
	count := int(native.Uint16(body[10:]))
	next := uint64(headerSize + count*elementSize)
	var all []cell
	for i := range count {
		at := headerSize + i*elementSize
		if at+elementSize > len(body) {
			t.problem("%s has no room for its %d entries", name, count)
			return all
		}
		e := body[at:]
		var c cell
		var pos, keySize, valueSize uint64
		if leaf {
			c.flags, pos = native.Uint32(e), uint64(native.Uint32(e[4:]))
			keySize, valueSize = uint64(native.Uint32(e[8:])), uint64(native.Uint32(e[12:]))
		} else {
			pos, keySize, c.child = uint64(native.Uint32(e)), uint64(native.Uint32(e[4:])), native.Uint64(e[8:])
		}
		end := next + keySize + valueSize
		if uint64(at)+pos != next || end > uint64(len(body)) {
			t.problem("%s: entry %d of %d is not where it should be", name, i+1, count)
			return all
		}
		c.key, c.value = body[next:next+keySize], body[next+keySize:end]
		all, next = append(all, c), end
	}
	return all
}

// ordered notes a key that is out of order.
func (t *tree) ordered(name string, cells []cell, at place) {
	last := at.from
	for i, c := range cells {
		if order := bytes.Compare(last, c.key); last != nil && (order > 0 || order == 0 && i > 0) {
			t.problem("%s: key %q is out of order", name, c.key)
		}
		if at.to != nil && bytes.Compare(c.key, at.to) >= 0 {
			t.problem("%s: key %q belongs elsewhere", name, c.key)
		}
		last = c.key
	}
}

func (t *tree) branch(name string, body []byte, at place) {
	cells := t.cells(name, body, false)
	t.ordered(name, cells, at)
	if len(cells) == 0 {
		t.problem("%s is an empty branch", name)
	}
	for i, c := range cells {
		below := place{at.bucket, at.inner, c.key, at.to}
		if i+1 < len(cells) {
			below.to = cells[i+1].key
		}
		t.page(c.child, below)
	}
}

func (t *tree) leaf(name string, body []byte, at place) {
	cells := t.cells(name, body, true)
	t.ordered(name, cells, at)
	for _, c := range cells {
		switch {
		case c.flags == bucketFlag:
			t.bucket(name, c, at)
		case c.flags == 0 && at.bucket != "":
			t.elements = append(t.elements, element{at.bucket, at.inner + string(c.key), c.value})
		default:
			t.problem("%s: %q is neither a bucket nor a value", name, c.key)
		}
	}
}

// bucket reads a bucket, which is a tree of its own or, when it is small, a leaf within its value.
func (t *tree) bucket(name string, c cell, at place) {
	inside := place{bucket: at.bucket, inner: at.inner + string(c.key) + "\x00"}
	if at.bucket == "" {
		inside = place{bucket: string(c.key)}
	}
	switch {
	case len(c.value) < bucketHeader:
		t.problem("%s: bucket %q has no root", name, c.key)
	case native.Uint64(c.value) != 0:
		t.page(native.Uint64(c.value), inside)
	case len(c.value) < bucketHeader+headerSize:
		t.problem("%s: bucket %q is cut short", name, c.key)
	default:
		t.node(fmt.Sprintf("%s, bucket %q", name, c.key), c.value[bucketHeader:], inside)
	}
}

// freelist reads which pages are free. A page that is in use and free would be written over.
func (t *tree) freelist() {
	body, ok := t.claim(t.meta.freelist)
	if !ok {
		return
	}
	if native.Uint16(body[8:]) != freelistFlag {
		t.problem("page %d is not the list of free pages", t.meta.freelist)
		return
	}
	count, ids := uint64(native.Uint16(body[10:])), body[headerSize:]
	if count == manyFree {
		count, ids = native.Uint64(ids), ids[8:]
	}
	if count > uint64(len(ids)/8) {
		t.problem("the list of free pages is cut short")
		return
	}
	for i := range count {
		id := native.Uint64(ids[i*8:])
		if id < 2 || id >= t.meta.high || t.used[id] {
			t.problem("page %d can't be free", id)
			continue
		}
		t.used[id] = true
	}
}
