// Package upstream answers requests on the sockets of tasks with the answers of another server: the agent of a Nomad
// cluster. Every request is authenticated here first, so a caller without a good token never reaches the agent. What is
// passed on goes with the caller's own token.
//
// Reads that a client can block on come from a cache. One query for each resource and token waits at the agent, and its
// answer goes to every caller who has sent that very token. So no caller sees an answer that its own token has not
// earned. After a change through any socket, reads wait for an answer that the agent has made after the change. While
// the agent is away, the latest answer is good for thirty seconds, and its X-Nomad-LastContact says how old it is.
//
// Everything else is passed on as it comes: changes exactly once, streams and commands frame by frame.
package upstream
