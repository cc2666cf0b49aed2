package settings

import (
	"bytes"
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"path/filepath"
	"slices"
	"strings"
	"syscall"

	"taskapi/allocrunner/consul"
	"taskapi/cmd/taskapi/internal/agent"
	"taskapi/internal/privatefile"
)

// recordName is the file in an allocation's directory that keeps its settings.
const recordName = "settings.json"

// maxRecord is more bytes than a command line can have.
const maxRecord = 4 << 20

// Record is what an allocation's directory remembers: the values with which it ran last, defaults left out, and the
// environment's variables for Consul.
type Record struct {
	Values    Values          `json:"settings"`
	ConsulEnv consul.Settings `json:"consul_env,omitzero"`
}

// Read returns the record of an allocation's directory, an empty one if there is none.
func Read(dir string) (r Record, err error) {
	path := filepath.Join(dir, recordName)
	encoded, _, err := privatefile.Read(path, maxRecord)
	if errors.Is(err, fs.ErrNotExist) || errors.Is(err, syscall.ENOTDIR) {
		return Record{}, nil
	}
	if err == nil {
		d := json.NewDecoder(bytes.NewReader(encoded))
		d.DisallowUnknownFields()
		err = d.Decode(&r)
	}
	if err == nil {
		_, err = r.Settings()
	}
	if err != nil {
		return Record{}, fmt.Errorf("%s, the settings of the last run, can't be read: %w; remove it, and give all flags and "+
			"-o again", path, agent.UnwrapPath(err))
	}
	return r, nil
}

// Save writes the record into an allocation's directory, unless it is there.
func (r Record) Save(dir string) error {
	path := filepath.Join(dir, recordName)
	r.Values = slices.DeleteFunc(slices.Clone(r.Values), func(v Value) bool { return v.Key == SealKey })
	encoded, err := json.MarshalIndent(r, "", "  ")
	encoded = append(encoded, '\n')
	if had, _, failed := privatefile.Read(path, maxRecord); failed == nil && bytes.Equal(had, encoded) {
		return nil // it is on the disk already
	}
	if err == nil {
		err = privatefile.Write(path, encoded)
	}
	if err != nil {
		return fmt.Errorf("allocation directory %s: %w", dir, err)
	}
	return nil
}

// Settings returns the settings of the record. Errors: wrong ones.
func (r Record) Settings() (agent.Settings, error) {
	s, err := r.Values.resolve()
	s.ConsulEnv = r.ConsulEnv
	if err == nil {
		err = s.Check()
	}
	return s, err
}

// Next returns the record of the next run: with the values that are given now, those that were given for the allocation
// before, the environment's for Consul, and the machine's, in this order. What was set for the machine before counts
// no more, but the users of the tasks stay as they are: the tasks may run.
func (r Record) Next(given, machine Values, getenv func(string) string) (Record, error) {
	var said Values
	for _, v := range r.Values {
		if v.said() || v.Key == "isolate_users" {
			said = append(said, v)
		}
	}
	if r.Values != nil {
		machine = slices.DeleteFunc(slices.Clone(machine), func(v Value) bool { return v.Key == "isolate_users" })
	}
	env, err := consul.FromEnv(getenv)
	if err != nil {
		return r, err
	}
	if !env.Configured() { // then an earlier environment may have named the agent
		env = env.Over(r.ConsulEnv)
	}
	if env.Configured() { // and the file may name another agent
		machine = slices.DeleteFunc(slices.Clone(machine), func(v Value) bool {
			return strings.HasPrefix(v.Key, "consul.") && v.Key != "consul.enabled"
		})
	}
	return Record{Values: given.over(said).over(machine).sorted(), ConsulEnv: env}, nil
}

// Row is a setting with the value that counts.
type Row struct{ Key, Value, From string }

// Rows returns all settings of a record, and of a data directory's file, in the order of the documents.
func (r Record) Rows(data Values) (rows []Row) {
	s, _ := r.Values.resolve() // Read and Next's caller have refused wrong values
	for _, k := range every() {
		row := Row{k.Name, k.Default, "default"}
		v := slices.Concat(r.Values, data).get(k.Name)
		switch {
		case v != nil && k.Name == "isolate_users":
			row = Row{k.Name, cmp.Or(s.IsolateUsers, "false"), v.From}
		case v != nil && k.block != nil && k.block.text == nil:
			row = Row{k.Name, k.block.labels(v.Texts), v.From}
		case v != nil:
			row = Row{k.Name, strings.Join(v.Texts, " "), v.From}
		case k.consul != nil && *k.consul(&r.ConsulEnv) != "":
			row = Row{k.Name, *k.consul(&r.ConsulEnv), k.Env}
		case k.Default == "":
			row.From = ""
		}
		rows = append(rows, row)
	}
	return rows
}
