package become

import "strconv"

// Program is what the process becomes. No string of it has a NUL byte.
type Program struct {
	Path string   // absolute
	Args []string // with the program's own name
	Env  []string
	Dir  string // absolute
	User *User  // nil: as we are
	Name string // the user's, for messages
}

// User is the user that the process becomes.
type User struct {
	UID, GID uint32
	Groups   []uint32
}

// Pack makes one message of it, with the number of the process that sends it: fields that end with a NUL, and lists of
// them, the number of fields before each.
func (p Program) Pack(sender int) (text []byte) {
	add := func(fields ...string) {
		for _, field := range fields {
			text = append(append(text, field...), 0)
		}
	}
	add(strconv.Itoa(sender), p.Path, p.Dir, p.Name)
	var ids []string
	if p.User != nil {
		for _, id := range append([]uint32{p.User.UID, p.User.GID}, p.User.Groups...) {
			ids = append(ids, strconv.Itoa(int(id)))
		}
	}
	for _, list := range [][]string{ids, p.Args, p.Env} {
		add(strconv.Itoa(len(list)))
		add(list...)
	}
	return text
}

// unpack reads a message. It is not ok when the message is not whole.
func unpack(text string) (p Program, sender int, ok bool) {
	ok = true
	next := func() string {
		for i := range len(text) {
			if text[i] == 0 {
				field := text[:i]
				text = text[i+1:]
				return field
			}
		}
		ok = false
		return ""
	}
	number := func() int {
		n, err := strconv.ParseUint(next(), 10, 32)
		ok = ok && err == nil
		return int(n)
	}
	list := func() (fields []string) {
		for n := number(); ok && n > 0; n-- {
			fields = append(fields, next())
		}
		return fields
	}
	sender = number()
	p.Path, p.Dir, p.Name = next(), next(), next()
	var ids []uint32
	for n := number(); ok && n > 0; n-- {
		ids = append(ids, uint32(number()))
	}
	if len(ids) > 1 {
		p.User = &User{UID: ids[0], GID: ids[1], Groups: ids[2:]}
	}
	p.Args, p.Env = list(), list()
	return p, sender, ok && text == ""
}
