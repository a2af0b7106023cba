// An OpenID provider that others wrote (npm oidc-provider); prints its port, then each grant as JSON.
//
// Clients: `service` and `leaseway` (client_credentials, secret in argv[2]), `signer` and dynamically registered ones. Every
// resource gets tokens as JWT. Refresh tokens rotate: one that is spent twice ends the grant.
import crypto from 'node:crypto';
import http from 'node:http';
import path from 'node:path';
import { pathToFileURL } from 'node:url';

const [, , folder, secret, lifetime, more = '{}'] = process.argv;
const { address, ahead = 0, key } = JSON.parse(more);
const now = Date.now;
Date.now = () => now() + ahead * 1000; // a clock that is wrong
const { privateKey } = crypto.generateKeyPairSync('rsa', { modulusLength: 2048 });
const { default: Provider } = await import(
  pathToFileURL(path.join(folder, 'node_modules/oidc-provider/lib/index.js'))
);
const signer = {
  client_id: 'signer',
  grant_types: ['client_credentials'],
  redirect_uris: [],
  response_types: [],
  token_endpoint_auth_method: 'private_key_jwt',
  jwks: { keys: [key] },
};
const server = http.createServer();
server.listen(0, '127.0.0.1', () => {
  const issuer = address ?? `http://127.0.0.1:${server.address().port}`;
  const provider = new Provider(issuer, {
    jwks: { keys: [privateKey.export({ format: 'jwk' })] },
    clients: [
      ...['service', 'leaseway'].map((id) => ({
        client_id: id,
        client_secret: secret,
        grant_types: ['client_credentials'],
        redirect_uris: [],
        response_types: [],
        token_endpoint_auth_method: 'client_secret_basic',
      })),
      ...(key ? [signer] : []),
    ],
    clientAuthMethods: ['none', 'client_secret_basic', 'private_key_jwt'],
    clientDefaults: { token_endpoint_auth_method: 'none' },
    scopes: ['openid', 'offline_access', 'tools'],
    features: {
      clientCredentials: { enabled: true },
      deviceFlow: { enabled: true },
      registration: { enabled: true },
      revocation: { enabled: true },
      resourceIndicators: {
        enabled: true,
        defaultResource: () => undefined,
        useGrantedResource: () => true,
        getResourceServerInfo: (_, resource) => ({
          scope: 'tools',
          audience: resource,
          accessTokenFormat: 'jwt',
          accessTokenTTL: Number(lifetime),
          jwt: { sign: { alg: 'RS256' } },
        }),
      },
    },
    rotateRefreshToken: true,
    issueRefreshToken: async (_, client) => client.grantTypeAllowed('refresh_token'),
    findAccount: (_, id) => ({ accountId: id, claims: () => ({ sub: id }) }),
  });
  const tell = (event) => (ctx, error) =>
    console.log(
      JSON.stringify({
        event,
        grant: ctx.oidc?.params?.grant_type,
        error: error?.error,
        detail: error?.error_detail,
      }),
    );
  provider.on('grant.success', tell('success'));
  provider.on('grant.error', tell('error'));
  provider.on('grant.revoked', tell('revoked'));
  provider.on('server_error', (_, error) => console.error(error));
  server.on('request', provider.callback());
  console.log(server.address().port);
});
