"""Real peers: Apache RocketMQ's own servers, clients and admin tool, fetched, started and stopped by us.

`jars` brings and verifies them, `apache` runs name servers and brokers, `driver` talks to the Java client program,
`mqadmin` runs admin commands. Shared by tests/interop and bench; nothing in src imports it.
"""
