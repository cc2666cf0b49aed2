# How taskapi works in the units taskapi-user@NAME; /usr/share/doc/taskapi/docs/settings.md lists the settings.

# audit {
#   path = "/var/log/taskapi-user/audit.log"
# }
