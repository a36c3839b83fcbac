"""Takes the graph that Dynamo gives, before autograd differentiates it; gives it with what autograd
would make worse said otherwise. What can be said later is said on the joint graph."""
