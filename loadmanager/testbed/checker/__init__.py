"""Whether a run kept its promises, judged from what its brokers and clients wrote down. Pure.

Nothing here asks the sidecars, ZooKeeper or the brokers: a checker that believed the
ones it checks would find what they find. It reads when which broker process served
which bundle, and which message was acknowledged when, by which broker and under which grant.
"""
