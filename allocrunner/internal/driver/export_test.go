package driver

const MaxExecs = maxExecs
