package processes

const MaxExecs = maxExecs
