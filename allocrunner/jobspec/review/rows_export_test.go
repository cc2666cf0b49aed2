package review

import (
	"cmp"
	"maps"
	"reflect"
	"slices"
	"strconv"
	"strings"

	"github.com/hashicorp/nomad/api"

	"taskapi/allocrunner/internal/services"
	"taskapi/allocrunner/jobspec/internal/schema"
)

// Honoured is the severity of a Row for what happens as it is written; no finding has it.
const Honoured Severity = "honoured"

const versionWords = "versions of devices are not compared: use regexp"

const noMeaningHere = "nothing is scheduled on one machine, so it has no meaning"

// Row says whether one attribute or block of a job file is honoured here.
type Row struct {
	Block     string // "task"; "job" for the outermost
	Attribute string // "kill_timeout", or the name of a block
	Severity  Severity
	Words     string // what happens instead, or what its value must be; empty for an attribute that is honoured as it is
}

// Rows returns every attribute and block that a job file may have, each with at least one row, in the order of the
// file's blocks.
func Rows() []Row {
	t := &table{known: map[[2]string][]Row{}, seen: map[[2]string]bool{}}
	tabulate(t, "job", jobRows, jobLimits)
	tabulate(t, "job", nil, parentLimits)
	tabulate(t, "parameterized", nil, parameterizedLimits)
	tabulate(t, "periodic", periodicRows, periodicLimits)
	tabulate(t, "group", groupRows, groupLimits)
	for _, c := range []Consul{NoConsul, HasConsul, ConsulHere} {
		tabulate(t, "job", consulJobRows[c], nil)
		tabulate(t, "group", consulGroupRows[c], nil)
		tabulate(t, "task", consulTaskRows[c], nil)
	}
	tabulate(t, "ephemeral_disk", nil, diskLimits)
	tabulate(t, "network", networkRows, networkLimits)
	tabulate(t, "port", nil, portLimits)
	tabulate(t, "port", nil, staticPortLimits)
	tabulate(t, "volume", volumeRows, volumeLimits)
	tabulate(t, "volume_mount", nil, volumeMountLimits)
	tabulate(t, "task", taskRows, taskLimits)
	tabulate(t, "task", noVaultRows, nil)
	tabulate(t, "dispatch_payload", nil, dispatchPayloadLimits)
	tabulate(t, "resources", resourceRows, resourceLimits)
	tabulate(t, "restart", nil, restartLimits)
	tabulate(t, "update", nil, updateLimits)
	tabulate(t, "lifecycle", nil, lifecycleLimits)
	tabulate(t, "logs", nil, logsLimits)
	tabulate(t, "identity", identityRows, identityLimits)
	tabulate(t, "action", nil, actionLimits)
	tabulate(t, "artifact", nil, artifactLimits)
	tabulate(t, "template", templateRows, templateLimits)
	tabulate(t, "wait", nil, waitLimits)
	tabulate(t, "change_script", nil, changeScriptLimits)
	tabulate(t, "service", serviceRows, serviceLimits)
	tabulate(t, "service", noConsulServiceRows, consulServiceLimits)
	tabulate(t, "service", nomadServiceRows, registeredServiceLimits)
	tabulate(t, "check", nomadCheckRows, checkLimits)
	tabulate(t, "check", checkRows, consulCheckLimits)
	tabulate(t, "check_restart", nil, checkRestartLimits)
	for _, part := range schedulerParts {
		for _, block := range part.blocks {
			t.add(block, part.name, Note, noMeaningHere)
		}
	}
	for _, r := range otherRows {
		t.add(r.Block, r.Attribute, r.Severity, r.Words)
	}
	t.walk("job", reflect.TypeFor[api.Job]())
	for _, key := range slices.SortedFunc(maps.Keys(t.known),
		func(a, b [2]string) int { return slices.Compare(a[:], b[:]) }) {
		if !t.seen[key] { // JSON alone has it
			t.rows = append(t.rows, t.known[key]...)
		}
	}
	return t.rows
}

// otherRows are the rows of what the reviewer looks at by itself.
var otherRows = []Row{
	{"job", "name", Honoured, "it, and the ID, must be printable, without a colon or slash, and of at most 128 bytes, " +
		"as those of groups and tasks"},
	{"job", "parameterized", Honoured, parameterizedAlone},
	{"job", "region", Honoured, "it must be printable and have no colon"},
	{"job", "namespace", Honoured, "it must be printable and have no colon"},
	{"group", "network", Honoured, "there must be at most one"},
	{"resources", "network", Honoured, "there must be at most one; the form of jobs for Nomad before 0.12"},
	{"group", "consul", Honoured, "namespace and partition say where an agent registers the services; cluster: " +
		clusterWords},
	{"volume", "source", Honoured, "the machine must have it, and not for reading alone unless read_only is true"},
	{"volume", "read_only", Honoured, "for drivers that mount; see volume_mount"},
	{"volume", "per_alloc", Honoured, "the volume's name has the allocation's index: NAME[0]"},
	{"ephemeral_disk", "sticky", Honoured, "the next allocation of the same name gets alloc/data, and the local " +
		"directories of the tasks that it has, too"},
	{"volume_mount", "volume", Honoured, "it must be a volume of the group"},
	{"volume_mount", "read_only", Warning, readOnlyWords},
	{"volume_mount", "propagation_mode", Note, linkWords},
	{"volume_mount", "selinux_label", Warning, "the files of the volume keep their labels"},
	{"network", "port", Honoured, "labels must differ in more than - and _"},
	{"network", "reserved_ports", Honoured, "each is a port with a static number"},
	{"task", "schedule", Honoured, "not of a poststop task: see Batch jobs"},
	{"cron", "start", Honoured, "it must have six fields: minute, hour, day of the month, month, day of the week, year"},
	{"cron", "end", Honoured, "it must be a minute and an hour, after the start and on the same day"},
	{"cron", "timezone", Honoured, "it must be a zone that the machine knows, or left out for the machine's own"},
	{"task", "driver", Honoured, "it must be an available driver"},
	{"task", "config", Honoured, "the driver defines its arguments"},
	{"task", "kill_timeout", Honoured, "it must be at most the progress_deadline of the group's update block"},
	{"task", "logs", Honoured, "max_files times max_file_size must be below the size of the group's ephemeral_disk"},
	{"service", "provider", Honoured, "all services of a group must have one provider"},
	{"identity", "extra_claims", Honoured, "each must be a claim of the setting identity.optional_extra_claims"},
	{"task", "leader", Honoured, "at most one task of the group can be one"},
	{"task", "lifecycle", Honoured, "at least one task of the group must have none"},
	{"artifact", "source", Honoured, "https, http, git::, hg::, or a path that the setting artifact.file_dirs allows; " +
		"buckets of S3 and GCS by their https URLs"},
	{"artifact", "options", Honoured, "archive, checksum and filename; ref, depth and sshkey for git; rev for hg"},
	{"artifact", "headers", Honoured, "for http and https"},
	{"artifact", "chown", Honoured, "what is fetched belongs to the task's user in any case"},
	{"task", "vault", Honoured, "with the setting vault.address: see Templates; a token has the policies of its role of " +
		"Vault, and not those of policies"},
	{"template", "destination", Honoured, "each template of a task must have its own"},
	{"template", "data", Honoured, "it calls no function that is not here: see Templates"},
	{"update", "max_parallel", Honoured, "how many allocations update --all replaces at a time"},
	{"update", "stagger", Note, noMeaningHere},
	{"update", "canary", Note, noMeaningHere},
	{"update", "auto_revert", Note, noMeaningHere},
	{"update", "auto_promote", Note, noMeaningHere},
	{"resources", "cpu", Honoured, "the task's weight beside the other tasks of its group; " + limitMeaning},
	{"resources", "memory", Honoured, limitMeaning},
	{"resources", "memory_max", Honoured, limitMeaning},
	{"resources", "cores", Honoured, "no other task of the data directory has the cores: see Devices and cores"},
	{"resources", "device", Honoured, "the machine's settings offer it: see Devices and cores"},
	{"constraint", "version", Refused, versionWords},
	{"constraint", "semver", Refused, versionWords},
	{"constraint", "distinct_hosts", Refused, "a device is on one machine"},
	{"constraint", "distinct_property", Refused, "a device is on one machine"},
	{"affinity", "version", Refused, versionWords},
	{"affinity", "semver", Refused, versionWords},
	{"device", "name", Honoured, "it must be TYPE, VENDOR/TYPE or VENDOR/TYPE/NAME"},
	{"resources", "disk", Note, sizeMeaning},
	{"resources", "secrets", Note, sizeMeaning},
	{"service", "task", Honoured, "it must be a task of the group"},
	{"service", "port", Honoured, services.PortWords},
	{"check", "name", Honoured, "each check of a task's service must have its own"},
	{"check", "task", Honoured, "it must be a task of the group, and that of the service"},
	{"check", "port", Honoured, services.PortWords},
	{"check_restart", "limit", Note, "without a limit above 0 nothing is restarted"},
}

// table collects rows on a walk through all blocks.
type table struct {
	known map[[2]string][]Row // by block and attribute
	seen  map[[2]string]bool
	rows  []Row
}

// add adds a row to known. A feature of two words names its own block before the attribute.
func (t *table) add(block, feature string, severity Severity, words string) {
	if inner, attribute, ok := strings.Cut(feature, " "); ok {
		block, feature = inner, attribute
	}
	key := [2]string{block, feature}
	if row := (Row{block, feature, severity, words}); !slices.Contains(t.known[key], row) { // both providers may have it
		t.known[key] = append(t.known[key], row)
	}
}

func tabulate[T any](t *table, block string, rows []row[T], limits []limit[T]) {
	for _, r := range rows {
		if r.used == nil && !fieldOf(new(T), r.feature).IsValid() {
			panic(r.feature + " is no argument or block of the SDK's struct")
		}
		t.add(block, r.feature, r.severity, r.message)
	}
	for _, l := range limits {
		if l.value == nil && !fieldOf(new(T), l.feature).IsValid() {
			panic(l.feature + " is no argument of the SDK's struct")
		}
		t.add(block, l.feature, Honoured, l.message)
	}
}

// walk adds the rows of a block, and those of the blocks in it that are not wholly without effect. What the
// specification has beyond the SDK's struct comes last.
func (t *table) walk(block string, typ reflect.Type) {
	fields := schema.Fields(typ)
	slices.SortStableFunc(fields, func(a, b schema.Field) int {
		return cmp.Compare(strconv.FormatBool(a.Extension), strconv.FormatBool(b.Extension))
	})
	for _, f := range fields {
		key := [2]string{block, f.Name}
		if f.Kind == "label" || t.seen[key] {
			continue
		}
		t.seen[key] = true
		rows := t.known[key]
		if f.Extension && rows == nil {
			rows = t.known[[2]string{"task", f.Name}] // it is for each task
		}
		for _, r := range rows {
			r.Block = block
			t.rows = append(t.rows, r)
		}
		elem := f.Elem()
		if len(rows) == 0 && elem == nil {
			t.rows = append(t.rows, Row{block, f.Name, Honoured, ""})
		}
		off := slices.ContainsFunc(rows, func(r Row) bool { return r.Severity != Honoured })
		if elem != nil && !off && f.Name != "reserved_ports" {
			t.walk(f.Name, elem)
		}
	}
}
