# How taskapi works on this machine, for root; /usr/share/doc/taskapi/docs/settings.md lists the settings.
# `taskapi config` checks this file and prints each setting with its value.

# Each task runs as a user of its own, so that none can read another's token or root's.
isolate_users = true

# A JSON line for each refusal and each change; logrotate(8) rotates the file.
# audit {
#   path = "/var/log/taskapi/audit.log"
# }
