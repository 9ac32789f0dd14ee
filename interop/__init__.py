"""Real peers: Apache RocketMQ's own servers, clients and admin tool, which this package fetches, starts and stops.

`jars` fetches and verifies them, `apache` runs name servers and brokers, `driver` talks to the Java client program,
`mqadmin` runs admin commands. Shared by tests/interop and bench; nothing in src imports it.
"""
