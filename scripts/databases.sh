#!/bin/sh
# Make sure that there are servers for make databases: those of the system, else the Debian packages (as root). The tests
# start them themselves, so a cluster that a package would make and start is prevented.
set -eu
missing=""
ls /usr/lib/postgresql/*/bin/postgres >/dev/null 2>&1 || missing="postgresql"
command -v mariadbd >/dev/null 2>&1 || [ -x /usr/sbin/mariadbd ] || missing="$missing mariadb-server-core"
command -v redis-check-rdb >/dev/null 2>&1 || missing="$missing redis-tools" # the server's program, without its service
[ -n "$missing" ] || exit 0
if [ "$(id -u)" -ne 0 ] || ! command -v apt-get >/dev/null 2>&1; then
    echo "databases: found no $missing, expected them; install them (Debian: apt install $missing)" >&2
    exit 2
fi
echo "databases: installing the packages $missing ..." >&2
export DEBIAN_FRONTEND=noninteractive
mkdir -p /etc/postgresql-common
[ -e /etc/postgresql-common/createcluster.conf ] || echo "create_main_cluster = false" >/etc/postgresql-common/createcluster.conf
apt-get update -qq
# shellcheck disable=SC2086  # a list of words
apt-get install -y -qq --no-install-recommends $missing >/dev/null
