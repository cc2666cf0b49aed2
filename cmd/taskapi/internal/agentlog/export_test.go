package agentlog

// MaxUnread is how many lines wait for a slow reader.
const MaxUnread = maxUnread
